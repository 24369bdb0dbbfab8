//! Giving up what cannot be read: listing it, and marking it as damaged when the operator accepts the loss.
//!
//! Nothing here writes to a segment, removes a file or guesses: `LOSSES` names bytes, and from then on those that cannot be
//! read count as damage like any other.

use crate::error::{Fault, OpenError, ReadError, VerifyError};
use crate::layout::{FileKind, file_kind};
use crate::log::Shared;
use crate::losses::{Loss, LossKind, Losses};
use crate::manifest::{Manifest, ManifestRead};
use crate::reader::{Chunk, ReadLimit};
use crate::recovery::{open_error, read_manifest};
use crate::segment::Segment;
use crate::storage::{Folder, Storage};
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

/// Reads a whole log, which nobody may have open, and lists what cannot be read. With `accept_loss` those places count as
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
        let (mut losses, _) = Losses::read(&*storage).map_err(error)?;
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
                    // Deleted: nobody wants its events any more.
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
        // Where a whole file cannot be opened, no byte is known to be bad.
        given_up.retain(|events| !events.bytes.is_empty());
        let mut added = Vec::new();
        let mut hit = Vec::new();
        for events in &given_up {
            let Some(segment) = self.segment_of_file(&events.file) else { continue };
            let (number, salt) = (segment.id.number, segment.id.salt);
            let loss =
                |range: &Range<u64>| Loss { kind: LossKind::Segment, number, salt, range: range.clone() };
            added.extend(events.bytes.iter().map(loss));
            hit.push(segment);
        }
        if added.is_empty() {
            return Ok(given_up);
        }
        let mut losses = self.losses.lock();
        let mut changed = losses.clone();
        let segments = Arc::clone(&self.view.read().segments);
        let kept = Arc::clone(&self.kept.read());
        changed.add(added, |loss| match loss.kind {
            LossKind::Segment => segments.iter().any(|segment| segment.id.number == loss.number),
            LossKind::KeptIndex => kept.iter().any(|kept| kept.row.number == loss.number),
        });
        changed.write(&*self.storage)?;
        *losses = changed;
        for segment in hit {
            segment.accept_losses(losses.of_segment(segment.id.number, segment.id.salt));
        }
        drop(losses);
        self.probe_unreadable();
        Ok(given_up)
    }
}
