//! Giving up what cannot be read: listing it, and marking it as damaged when the operator accepts the loss.
//!
//! Nothing here writes to a segment, removes a file or guesses: `LOSSES` names bytes, and from then on those that cannot be
//! read count as damage like any other.

use crate::error::{Fault, OpenError, ReadError, VerifyError};
use crate::holes::unreadable_sectors;
use crate::layout::{FileKind, SEGMENT_DATA_START, file_kind};
use crate::log::Shared;
use crate::losses::{Loss, LossKind, Losses};
use crate::manifest::{Manifest, ManifestRead};
use crate::reader::{Chunk, ReadLimit};
use crate::recovery::{open_error, read_manifest};
use crate::segment::Segment;
use crate::storage::{Folder, Storage, is_unreadable};
use crate::unreadable::UnreadableEvents;
use crate::verify::{Progress, UnreadablePlace, verify_storage};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// What a repair found, and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Places whose loss costs events or ids.
    pub places: Vec<UnreadablePlace>,
    /// What they hold, as far as that is known.
    pub events: Vec<Fault>,
    /// Places that cost nothing: there is a second copy of what they hold.
    pub redundant: Vec<UnreadablePlace>,
    /// Whether the losses are accepted now.
    pub is_accepted: bool,
}

/// Reads a whole log that is not open and lists its unreadable places. With `accept_loss` those places count as
/// damaged from then on.
///
/// # Errors
/// [`VerifyError`] when the folder cannot be read as a log at all, or the list of losses cannot be written.
pub fn repair(
    folder: &Path,
    accept_loss: bool,
    progress: impl FnMut(Progress),
) -> Result<RepairReport, VerifyError> {
    let storage = Folder::open(folder).map_err(|error| {
        VerifyError::Open(open_error(&folder.display().to_string(), "open the folder", error))
    })?;
    repair_storage(Arc::new(storage), accept_loss, progress)
}

/// Like [`repair`], on any storage.
///
/// # Errors
/// See [`repair`].
pub fn repair_storage(
    storage: Arc<dyn Storage>,
    accept_loss: bool,
    progress: impl FnMut(Progress),
) -> Result<RepairReport, VerifyError> {
    let found = verify_storage(Arc::clone(&storage), progress)?;
    let location = storage.location();
    let lock = storage.lock().map_err(|error| open_error(&location, "lock the folder", error))?;
    let _lock = lock.ok_or_else(|| OpenError::Locked { folder: location.clone() })?;
    let ManifestRead::Found { manifest, .. } = read_manifest(&*storage)? else {
        return Err(OpenError::NotALog { folder: location, example: "no MANIFEST".to_owned() }.into());
    };
    let mut report = RepairReport { events: found.unreadable_events, ..RepairReport::default() };
    let mut added = Vec::new();
    for place in found.unreadable {
        match loss_of(&manifest, &place) {
            Some(loss) => {
                added.push(loss);
                report.places.push(place);
            }
            None => report.redundant.push(place),
        }
    }
    if accept_loss && !added.is_empty() {
        let error = |error| VerifyError::Open(open_error(&location, "write LOSSES", error));
        let mut losses = match Losses::read(&*storage) {
            Ok((losses, _)) => losses,
            // What it named and still cannot be read was found again.
            Err(source) if is_unreadable(&source) => Losses::default(),
            Err(source) => return Err(error(source)),
        };
        losses.add(added, |loss| is_named(&manifest, loss));
        losses.write(&*storage).map_err(error)?;
        report.is_accepted = true;
    }
    Ok(report)
}

/// The loss that a place means; `None` where it can be made again, or read from a second copy.
fn loss_of(manifest: &Manifest, place: &UnreadablePlace) -> Option<Loss> {
    let range = place.position..place.end;
    match file_kind(&place.file)? {
        // The manifest repeats what the header page says.
        FileKind::Segment(_) if place.end <= SEGMENT_DATA_START => None,
        FileKind::Segment(number) => {
            let row = manifest.segments.iter().find(|row| row.id.number == number)?;
            Some(Loss { kind: LossKind::Segment, number, salt: row.id.salt, range })
        }
        FileKind::Index(number) => {
            let row = manifest.kept_indexes.iter().find(|row| row.number == number)?;
            Some(Loss { kind: LossKind::KeptIndex, number, salt: row.salt, range })
        }
        _ => None,
    }
}

fn is_named(manifest: &Manifest, loss: &Loss) -> bool {
    match loss.kind {
        LossKind::Segment => manifest.segments.iter().any(|row| row.id.number == loss.number),
        LossKind::KeptIndex => manifest.kept_indexes.iter().any(|row| row.number == loss.number),
    }
}

impl Shared {
    /// Finds out which events of any topic the known unreadable places hold.
    pub(crate) fn list_unreadable(&self) -> Vec<UnreadableEvents> {
        self.probe_unreadable();
        let mut chunk = Chunk::default();
        for events in self.unreadable.list() {
            let Some(segment) = self.segment_of_file(&events.file) else { continue };
            let Ok(spans) = self.topic_spans(&segment) else { continue };
            for span in spans {
                let seqs = self.with_entries(&segment, span.topic, |entries| {
                    let is_hit = |range: &Range<u64>, start: u32, end: u32| {
                        range.start < u64::from(end) && range.end > u64::from(start)
                    };
                    let hit = entries
                        .iter()
                        .filter(|entry| events.bytes.iter().any(|it| is_hit(it, entry.position, entry.end)));
                    hit.map(|entry| (entry.first_seq, entry.last_seq)).collect::<Vec<_>>()
                });
                for (first_seq, last_seq) in seqs.unwrap_or_default() {
                    self.try_reading(span.topic, first_seq, last_seq, &mut chunk);
                }
            }
        }
        self.unreadable.list()
    }

    /// Reads a range; what cannot be read is noted on the way.
    pub(crate) fn try_reading(&self, topic: u32, first_seq: u64, last_seq: u64, chunk: &mut Chunk) {
        let mut seq = first_seq;
        while seq <= last_seq {
            match self.read(topic, seq, ReadLimit::default(), chunk) {
                Ok(()) if chunk.next_seq() > seq => seq = chunk.next_seq(),
                Err(ReadError::Unreadable { last_seq: unreadable, .. }) => seq = unreadable + 1,
                Err(ReadError::UnknownTopic(_)) => {
                    // The topic was deleted, so its events do not matter.
                    self.note_read(topic, 0, u64::MAX);
                    return;
                }
                Ok(()) | Err(ReadError::Io { .. }) => return,
            }
        }
    }

    fn segment_of_file(&self, file: &str) -> Option<Arc<Segment>> {
        let segments = Arc::clone(&self.view.read().segments);
        segments.iter().find(|segment| segment.name() == file).cloned()
    }

    /// Gives up what is known to be unreadable now; returns it.
    pub(crate) fn accept_losses(&self) -> io::Result<Vec<UnreadableEvents>> {
        let mut given_up = self.list_unreadable();
        let mut added = Vec::new();
        given_up.retain_mut(|events| {
            let Some(segment) = self.segment_of_file(&events.file) else { return false };
            // A reader stops early in a large place that fails, and remembers places that it could read later: only what fails
            // now, sector by sector, is given up. Where a whole file cannot be opened, no byte is known to be bad.
            let sectors = |range| segment.file().and_then(|file| unreadable_sectors(&*file, range)).ok();
            events.bytes = events.bytes.iter().filter_map(sectors).flatten().collect();
            let (number, salt) = (segment.id.number, segment.id.salt);
            added.extend(events.bytes.iter().map(|range| Loss {
                kind: LossKind::Segment,
                number,
                salt,
                range: range.clone(),
            }));
            !events.bytes.is_empty()
        });
        if added.is_empty() {
            return Ok(given_up);
        }
        // Also prepared segments, which no reader sees.
        let manifest = self.housekeeper.lock().manifest.clone();
        let mut losses = self.losses.lock();
        let mut changed = losses.clone();
        // An open that could not read the list started without it.
        added.extend(Losses::read(&*self.storage)?.0.rows);
        let segments = Arc::clone(&self.view.read().segments);
        changed.add(added, |loss| is_named(&manifest, loss));
        changed.write(&*self.storage)?;
        *losses = changed;
        for segment in segments.iter() {
            let ranges = losses.of_segment(segment.id.number, segment.id.salt);
            if !ranges.is_empty() {
                segment.accept_losses(ranges);
                self.append.lock().leave(segment.id.number);
            }
        }
        drop(losses);
        self.probe_unreadable();
        Ok(given_up)
    }
}
