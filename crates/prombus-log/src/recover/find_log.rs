//! Decides whether a folder contains a log, is ready for a new one, or contains something else. Also maps I/O errors to
//! [`OpenError`].

use crate::error::OpenError;
use crate::frame_scan::{Found, Scan};
use crate::layout::{FORMAT_VERSION, FileKind, MANIFEST, SEGMENT_DATA_START, file_kind};
use crate::manifest::{Manifest, ManifestRead};
use crate::segment;
use crate::storage::{OpenMode, Storage, is_unreadable};
use crate::unreadable_ranges::UnreadableAt;
use std::io;

/// The numbers of the files that a new log starts with.
pub(crate) const FIRST_SEGMENT: u64 = 1;
pub(crate) const FIRST_CHECKPOINTS: [u64; 2] = [2, 3];

/// Maps an I/O error to an open error. A missing permission becomes `ReadOnly`, even if it is the permission to read.
pub(crate) fn open_error(folder: &str, action: &str, source: io::Error) -> OpenError {
    let folder = folder.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly { folder, source }
        }
        _ => OpenError::Io { folder, action: action.to_owned(), source },
    }
}

/// The open error for a file that is needed and cannot be read.
pub(crate) fn read_error(storage: &dyn Storage, file: String, at: UnreadableAt) -> OpenError {
    let UnreadableAt { position, source } = at;
    if is_unreadable(&source) {
        return OpenError::Unreadable { folder: storage.location(), file, position, source };
    }
    open_error(&storage.location(), &format!("read {file}"), source)
}

/// Reads the manifest. The result is `Missing` or `Found`; everything else is an error.
pub(crate) fn read_manifest(storage: &dyn Storage) -> Result<ManifestRead, OpenError> {
    let read = Manifest::read(storage);
    match read.map_err(|error| read_error(storage, MANIFEST.to_owned(), error.into()))? {
        ManifestRead::Newer(found) => {
            Err(OpenError::Newer { file: MANIFEST.to_owned(), found, supported: FORMAT_VERSION })
        }
        ManifestRead::Damaged(fault) => Err(OpenError::ManifestDamaged(Box::new(fault))),
        found => Ok(found),
    }
}

/// Checks a folder without a manifest. Fails unless it is empty or contains only the leftovers of an interrupted first
/// open. A first open creates [`FIRST_SEGMENT`] and [`FIRST_CHECKPOINTS`], and writes no frame before the manifest.
pub(crate) fn check_empty(storage: &dyn Storage) -> Result<(), OpenError> {
    let folder = storage.location();
    let names = storage.list().map_err(|error| open_error(&folder, "list the folder", error))?;
    for name in names {
        let is_leftover = match file_kind(&name) {
            None => return Err(OpenError::NotALog { folder, example: Some(name) }),
            Some(FileKind::Segment(FIRST_SEGMENT)) => {
                let has_frames = has_frames(storage, &name);
                !has_frames.map_err(|error| read_error(storage, name.clone(), error.into()))?
            }
            Some(FileKind::Checkpoint(number)) => FIRST_CHECKPOINTS.contains(&number),
            Some(
                FileKind::Lock
                | FileKind::ManifestNew
                | FileKind::Reserve
                | FileKind::ReserveNew
                | FileKind::LossesNew,
            ) => true,
            Some(_) => false,
        };
        if !is_leftover {
            return Err(OpenError::ManifestMissing { folder, file: name });
        }
    }
    Ok(())
}

/// Whether a segment has frames. A segment without a valid header has none: its creation was interrupted.
fn has_frames(storage: &dyn Storage, name: &str) -> io::Result<bool> {
    let file = storage.open(name, OpenMode::Read)?;
    let mut header = [0; SEGMENT_DATA_START as usize];
    let read = file.read_at(&mut header, 0)?;
    let Some(salt) = segment::header_salt(&header[..read]) else { return Ok(false) };
    let mut scan = Scan::new(&*file, salt, SEGMENT_DATA_START, file.len()?, false);
    while let Some(found) = scan.next()? {
        if matches!(found, Found::Frame { .. }) {
            return Ok(true);
        }
    }
    Ok(false)
}
