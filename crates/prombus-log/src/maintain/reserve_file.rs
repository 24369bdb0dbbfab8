//! The reserve file. It occupies disk space and is removed when the disk is full, so that the manifest and checkpoints can
//! still be written.

use crate::layout::{RESERVE, RESERVE_NEW};
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
    /// Creates the file if this process has not created it or it is too small for a checkpoint. The new file replaces the old
    /// one only when it is complete: if the disk turns out to be full, the old one remains.
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
        let made = remove_if_there(storage, RESERVE_NEW)
            .and_then(|()| storage.open(RESERVE_NEW, OpenMode::Create))
            .and_then(|file| file.write_zeros(length, &mut |_| {}))
            .and_then(|()| storage.rename(RESERVE_NEW, RESERVE));
        match made {
            Ok(()) => {
                self.bytes = length;
                Ok(Step::Worked)
            }
            Err(error) if is_full(&error) => {
                let _ = storage.remove(RESERVE_NEW);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::simulated::Disk;

    fn reserve_length(disk: &Disk) -> Option<usize> {
        disk.contents(RESERVE).map(|bytes| bytes.len())
    }

    #[test]
    fn a_reserve_that_cannot_grow_on_a_full_disk_keeps_its_size() {
        let disk = Disk::new(1);
        let mut reserve = ReserveFile::default();
        assert_eq!(reserve.hold(&disk, 4096, 0).unwrap(), Step::Worked);
        assert_eq!((reserve_length(&disk), reserve.bytes), (Some(4096), 4096));
        // A checkpoint of 100,000 bytes needs a larger reserve, for which there is no room.
        disk.set_capacity(Some(disk.used_bytes() + 50_000));
        assert_eq!(reserve.hold(&disk, 4096, 100_000).unwrap(), Step::Idle);
        assert_eq!((reserve_length(&disk), disk.contents(RESERVE_NEW)), (Some(4096), None));
        disk.set_capacity(None);
        assert_eq!(reserve.hold(&disk, 4096, 100_000).unwrap(), Step::Worked);
        assert_eq!((reserve_length(&disk), disk.contents(RESERVE_NEW)), (Some(200_000), None));
        assert_eq!(reserve.hold(&disk, 4096, 100_000).unwrap(), Step::Idle);
    }
}
