//! Open files and the lock of a simulated disk. Both are dead after a power cut and when their process ends.

use super::Disk;
use super::disk_step::DiskStep;
use super::errors::{EBADF, EFBIG, EIO, ENOSPC, os_error, power_is_off};
use super::machine::{Machine, Verdict};
use crate::storage::{Lock, StorageFile, SyncPoint};
use std::io;

/// A write beyond this is refused: its position is certainly wrong, and the memory must not be allocated.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

pub(super) struct OpenFile {
    pub(super) disk: Disk,
    /// The process that opened it. The file is dead in any other process.
    pub(super) epoch: u64,
    pub(super) number: u64,
    pub(super) writable: bool,
}

impl OpenFile {
    fn alive(&self, state: &Machine) -> io::Result<()> {
        if state.epoch != self.epoch {
            return Err(power_is_off());
        }
        Ok(())
    }
}

impl StorageFile for OpenFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.disk.powered()?;
        self.alive(&state)?;
        Ok(state.inode_mut(self.number).current.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut state = self.disk.powered()?;
        self.alive(&state)?;
        let is_failing = state.armed.fail_reads.as_ref().is_some_and(|reads| reads.contains(&state.reads));
        state.reads += 1;
        let inode = state.inode_mut(self.number);
        let length = inode.current.len();
        let start = usize::try_from(position).map_or(length, |start| start.min(length));
        let read = buffer.len().min(length - start);
        if is_failing || !inode.can_read(start, read) {
            state.failed_reads += 1;
            return Err(os_error(EIO));
        }
        let current = &inode.current;
        buffer[..read].copy_from_slice(&current[start..start + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut state = self.disk.powered_to_write()?;
        self.alive(&state)?;
        if !self.writable {
            return Err(os_error(EBADF));
        }
        if position.saturating_add(bytes.len() as u64) > LARGEST_FILE_BYTES {
            return Err(os_error(EFBIG));
        }
        let start = usize::try_from(position).map_err(|_| os_error(EFBIG))?;
        let fitting = state.fitting_bytes(self.number, start, bytes.len());
        let verdict = state.begin(DiskStep::Write);
        let (written, outcome) = match verdict {
            Verdict::Proceed | Verdict::Lie if fitting < bytes.len() => (fitting, Err(os_error(ENOSPC))),
            Verdict::Proceed | Verdict::Lie => (fitting, Ok(())),
            Verdict::Fail | Verdict::Cut => (state.chance.part_of(fitting), verdict.outcome()),
        };
        state.inode_mut(self.number).write(&bytes[..written], start);
        outcome
    }

    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        if point == SyncPoint::LogData {
            let held = &self.disk.held_syncs;
            let mut are_held = held.are_held.lock();
            while *are_held {
                held.changed.wait(&mut are_held);
            }
        }
        let mut state = self.disk.powered_to_write()?;
        self.alive(&state)?;
        let verdict = state.begin(DiskStep::Sync(point));
        let honest = state.lied_about != Some(point);
        let Machine { inodes, chance, .. } = &mut *state;
        let inode = inodes.get_mut(&self.number).expect("an open file keeps its inode");
        match verdict {
            Verdict::Proceed => inode.sync(),
            Verdict::Fail => {
                inode.sync_partly(chance);
                inode.forget_dirty();
            }
            Verdict::Cut if honest => inode.sync_partly(chance),
            Verdict::Cut | Verdict::Lie => {}
        }
        verdict.outcome()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.epoch == self.epoch
            && let Some(inode) = state.inodes.get_mut(&self.number)
        {
            inode.open_files -= 1;
        }
    }
}

pub(super) struct HeldLock {
    pub(super) disk: Disk,
    pub(super) epoch: u64,
}

impl Lock for HeldLock {}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.epoch == self.epoch {
            state.locked = false;
        }
    }
}
