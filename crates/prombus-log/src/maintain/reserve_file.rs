//! The reserve file. It occupies disk space and is removed when the disk is full, so that the manifest and checkpoints can
//! still be written.

use crate::layout::RESERVE;
use crate::step::Step;
use crate::storage::{OpenMode, Storage, is_full, remove_if_there};
use std::io;

/// The size of the reserve file, unless [`Options::reserve_bytes`](crate::Options::reserve_bytes) is smaller. It is
/// larger if checkpoints are large.
const RESERVE_FILE_BYTES: u64 = 256 << 10;

/// The reserve file.
#[derive(Default)]
pub(crate) struct ReserveFile {
    /// The length of the file; zero if this process has not created it.
    bytes: u64,
}

impl ReserveFile {
    /// Creates the file if this process has not created it or it is too small for a checkpoint. If the disk turns out
    /// to be full, the reserve file is missing afterwards.
    pub(crate) fn hold(
        &mut self,
        storage: &dyn Storage,
        least: u64,
        checkpoint_file_bytes: u64,
    ) -> io::Result<Step> {
        let least = least.min(RESERVE_FILE_BYTES);
        // A checkpoint is written before the oldest one is removed, and the next checkpoint may be larger than this
        // one.
        let length = least.max(2 * checkpoint_file_bytes);
        if self.bytes >= least.max(checkpoint_file_bytes * 3 / 2) {
            return Ok(Step::Idle);
        }
        self.bytes = 0;
        let made = remove_if_there(storage, RESERVE)
            .and_then(|()| storage.open(RESERVE, OpenMode::Create))
            .and_then(|file| file.write_zeros(length, &mut |_| {}));
        match made {
            Ok(()) => {
                self.bytes = length;
                Ok(Step::Worked)
            }
            Err(error) if is_full(&error) => {
                let _ = storage.remove(RESERVE);
                Ok(Step::Idle)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the file to free its space. Returns false if it did not exist.
    pub(crate) fn give_up(&mut self, storage: &dyn Storage) -> bool {
        // The file may exist although `bytes` is zero: an earlier process may have created it.
        self.bytes = 0;
        storage.remove(RESERVE).is_ok()
    }
}
