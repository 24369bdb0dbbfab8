//! Giving up what cannot be read in a log that is not open: listing it, and marking it as damaged when the operator accepts the
//! loss.
//!
//! Nothing here writes to a segment, removes a file or guesses: `LOSSES` names bytes, and from then on those that cannot be
//! read count as damage like any other.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::error::{Fault, OpenError, VerifyError};
use crate::layout::{FileKind, SEGMENT_DATA_START, file_kind};
use crate::manifest::{Manifest, ManifestRead};
use crate::recover::find_log::{open_error, read_manifest};
use crate::recover::verify::{Progress, UnreadablePlace, verify_storage};
use crate::storage::{Folder, Storage, is_unreadable};
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
        losses.add(added, |loss| manifest.names_file_of(loss));
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
