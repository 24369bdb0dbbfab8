//! A file that takes room, given up when the disk is full so that the manifest and checkpoints can still be written.

use crate::layout::RESERVE;
use crate::step::Step;
use crate::storage::{OpenMode, Storage, is_full, remove_if_there};
use std::io;

/// Size of the file that is given up for the manifest and checkpoints when the disk is full; larger where checkpoints are.
const RESERVE_FILE_BYTES: u64 = 256 << 10;

/// The reserve file.
#[derive(Default)]
pub(crate) struct ReserveFile {
    /// Its length; zero while it is not there.
    bytes: u64,
}

impl ReserveFile {
    /// Makes the file, if it is not there, or is too small for a checkpoint, and there is room.
    pub(crate) fn hold(
        &mut self,
        storage: &dyn Storage,
        least: u64,
        checkpoint_file_bytes: u64,
    ) -> io::Result<Step> {
        let least = least.min(RESERVE_FILE_BYTES);
        // A checkpoint is written before the oldest one goes, and the next one may be larger.
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

    /// Frees the room; false when it was given up before.
    pub(crate) fn give_up(&mut self, storage: &dyn Storage) -> bool {
        // Also one of an earlier run, which this one has not measured.
        self.bytes = 0;
        storage.remove(RESERVE).is_ok()
    }
}
