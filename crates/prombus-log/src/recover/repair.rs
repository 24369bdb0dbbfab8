//! Repairs a log that is not open: lists the bytes that cannot be read, and marks them as damaged when the operator accepts
//! the loss.
//!
//! A repair writes only `LOSSES`, never a segment, and removes no file. Bytes that `LOSSES` lists count as damaged whenever
//! they cannot be read.

use crate::accepted_losses::{Loss, LossKind, Losses};
use crate::error::{Fault, OpenError, VerifyError};
use crate::layout::{FileKind, SEGMENT_DATA_START, file_kind};
use crate::manifest::{Manifest, ManifestRead};
use crate::recover::find_log::{open_error, read_manifest};
use crate::recover::verify::{Progress, UnreadablePlace, verify_storage};
use crate::storage::{Folder, Storage, is_unreadable};
use std::path::Path;
use std::sync::Arc;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Places whose loss costs events or ids.
    pub places: Vec<UnreadablePlace>,
    /// The events in those places, as far as they are known.
    pub events: Vec<Fault>,
    /// Places whose loss costs nothing: their content has a second copy or can be rebuilt.
    pub redundant: Vec<UnreadablePlace>,
    /// Whether this repair accepted the losses.
    pub is_accepted: bool,
}

/// Reads a whole log that is not open and lists its unreadable places. With `accept_loss`, those places count as damaged
/// from then on.
///
/// # Errors
/// [`VerifyError`] if the folder cannot be read as a log at all, or the list of losses cannot be written.
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
        return Err(OpenError::NotALog { folder: location, example: None }.into());
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
            // An unreadable list is replaced. No loss is forgotten, because the verification has found every place that
            // still cannot be read.
            Err(source) if is_unreadable(&source) => Losses::default(),
            Err(source) => return Err(error(source)),
        };
        losses.add(added, |loss| manifest.lists_file_of(loss));
        losses.write(&*storage).map_err(error)?;
        report.is_accepted = true;
    }
    Ok(report)
}

/// The loss to record for an unreadable place; `None` if its content can be rebuilt or has a second copy.
fn loss_of(manifest: &Manifest, place: &UnreadablePlace) -> Option<Loss> {
    let range = place.position..place.end;
    match file_kind(&place.file)? {
        // The manifest repeats the content of the header page.
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
