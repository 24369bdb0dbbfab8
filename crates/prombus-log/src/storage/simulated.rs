//! A simulated disk in memory that loses, reorders and tears unsynced writes.
//!
//! Reads see the page cache. The durable content is kept separately, in sectors of 512 bytes. A sync of a file makes its
//! bytes and its length durable, but not its name. A sync of the folder makes names durable, but no bytes.
//! [`Disk::power_cut`] decides at random which unsynced writes survive. All random decisions follow from the seed: the same
//! seed and the same operations lose the same bytes.
//!
//! This file contains the operations for tests. `machine.rs` contains the machine and its names, `inode.rs` the sectors of
//! one file, and `chance.rs` the random decisions.
//!
//! Two effects of real disks are not modelled. A sector is never torn. And after a power cut, a sector that was ever
//! durable has either its last synced or its newest content, never a version between the two.
//!
//! Files and locks from before a power cut are dead: operations on such files fail, and dropping such a lock releases
//! nothing. But a [`Disk`] simulates the machine and not the process: drop everything that still uses it before the
//! power comes back.

use super::{Lock, OpenMode, Storage, StorageFile, SyncPoint};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

mod chance;
mod disk_step;
mod errors;
mod inode;
mod machine;
mod name_change;
mod open_file;
#[cfg(test)]
mod tests;

use chance::Random;
use errors::{EROFS, os_error, power_is_off};
use inode::{Inode, SECTOR_BYTES};
use machine::{Armed, Machine, Verdict};
use name_change::NameChange;
use open_file::{HeldLock, OpenFile};

pub use disk_step::DiskStep;

/// The simulated disk. Clones are the same disk. [`fork`](Disk::fork) makes an independent copy.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<Machine>>,
    held_syncs: Arc<HeldSyncs>,
}

/// Makes syncs of log data wait while `are_held` is true.
#[derive(Default)]
struct HeldSyncs {
    are_held: Mutex<bool>,
    changed: Condvar,
}

impl Disk {
    /// An empty disk whose random decisions follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::from_state(Machine {
            chance: Random { state: seed },
            salts: Random { state: !seed },
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending: Vec::new(),
            epoch: 0,
            locked: false,
            off: false,
            last_cut: None,
            operations: 0,
            reads: 0,
            failed_reads: 0,
            armed: Armed::default(),
            lied_about: None,
            capacity_bytes: None,
            read_only: false,
        })
    }

    fn from_state(state: Machine) -> Self {
        Self { state: Arc::new(Mutex::new(state)), held_syncs: Arc::default() }
    }

    /// With true, makes syncs of log data wait, as on a slow disk. With false, lets them continue.
    pub fn hold_syncs(&self, are_held: bool) {
        *self.held_syncs.are_held.lock() = are_held;
        self.held_syncs.changed.notify_all();
    }

    /// Cuts the power, decides which unsynced writes survive, and switches the power on again. Files and locks from before
    /// are dead. Cuts and failures that were requested and have not happened yet are cancelled.
    pub fn power_cut(&self) {
        let mut state = self.state.lock();
        if !state.off {
            state.last_cut = None;
        }
        state.settle();
        state.off = false;
        state.armed = Armed::default();
        state.end_process();
    }

    /// Makes the power go off at the `operations`-th mutating operation from now: 1 is the next one, 0 means immediately.
    ///
    /// That operation may still take effect in part or as a whole. It and everything after it fail with "power is off"
    /// until [`power_cut`](Disk::power_cut).
    pub fn cut_after(&self, operations: u64) {
        let mut state = self.state.lock();
        if operations == 0 {
            state.off = true;
            state.last_cut = None;
        }
        state.armed.cut_at = Some(state.operations.saturating_add(operations));
    }

    /// Whether a [`cut_after`](Disk::cut_after) has switched the power off.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// The number of mutating operations so far. An operation that is refused before it starts (a read-only disk, no such
    /// file, a create on a full disk) does not count. An operation that fails because of a requested fault does.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// The operation at which the power last went off; `None` if it was cut between operations.
    pub fn last_cut(&self) -> Option<DiskStep> {
        self.state.lock().last_cut
    }

    /// Kills the process but not the machine: open files and locks are dead, and the page cache stays as it is.
    pub fn kill(&self) {
        self.state.lock().end_process();
    }

    /// Makes syncs at this point report success without doing anything. They still count as operations. `None` makes
    /// all syncs work again.
    pub fn lie_about(&self, point: Option<SyncPoint>) {
        self.state.lock().lied_about = point;
    }

    /// Makes the next sync at this point fail with EIO, even if [`lie_about`](Disk::lie_about) applies to the point.
    ///
    /// As on Linux, a failed sync has made some of the dirty sectors durable, and the others count as clean: reads see
    /// them, but no later sync writes them unless they are written again. Names that did not become durable stay
    /// pending.
    pub fn fail_next_sync(&self, point: SyncPoint) {
        self.state.lock().armed.fail_syncs.push(point);
    }

    /// Makes the next write fail with EIO after a prefix of it was written, possibly nothing or all of it.
    pub fn fail_next_write(&self) {
        self.state.lock().armed.fail_write = true;
    }

    /// Makes the `operations`-th mutating operation from now (1 is the next one), and only that one, fail with EIO. A
    /// write or a sync fails as after [`fail_next_write`](Disk::fail_next_write) or
    /// [`fail_next_sync`](Disk::fail_next_sync). Any other failed operation changes nothing.
    pub fn fail_at(&self, operations: u64) {
        let mut state = self.state.lock();
        state.armed.fail_at = Some(state.operations.saturating_add(operations.max(1)));
    }

    /// Limits the total length of all files; `None` removes the limit. A write beyond the limit writes the part that
    /// fits and fails. On a full disk no file can be created. Both errors are of kind `StorageFull`.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.state.lock().capacity_bytes = capacity_bytes;
    }

    /// The total length of all files that have a name.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Makes every mutating operation, and opening a file to write, fail with EROFS.
    pub fn set_read_only(&self, read_only: bool) {
        self.state.lock().read_only = read_only;
    }

    /// Flips a bit of a file, in the cache and on the disk.
    ///
    /// # Panics
    ///
    /// If the file, byte or bit does not exist, because a test that flips nothing proves nothing.
    pub fn flip_bit(&self, name: &str, position: u64, bit: u8) {
        assert!(bit < 8, "a byte has no bit {bit}");
        let mut state = self.state.lock();
        let inode = state.names.get(name).copied().and_then(|number| state.inodes.get_mut(&number));
        let byte = usize::try_from(position).ok();
        let flipped = inode.zip(byte).is_some_and(|(inode, byte)| inode.flip_bit(byte, bit));
        assert!(flipped, "no byte {position} in a file {name}");
    }

    /// Makes reads of the sectors that contain these bytes fail with EIO. This persists across power cuts and renames,
    /// until [`make_readable`](Disk::make_readable) is called or the whole sector is written again.
    ///
    /// # Panics
    ///
    /// If the file does not exist, because a test that damages nothing proves nothing.
    pub fn make_unreadable(&self, name: &str, bytes: std::ops::Range<u64>) {
        let mut state = self.state.lock();
        let number = state.names.get(name).copied().unwrap_or_else(|| panic!("no file {name}"));
        let sectors = bytes.start as usize / SECTOR_BYTES..(bytes.end as usize).div_ceil(SECTOR_BYTES);
        state.inode_mut(number).unreadable.extend(sectors);
    }

    /// Makes all sectors of all files readable again.
    pub fn make_readable(&self) {
        let mut state = self.state.lock();
        state.inodes.values_mut().for_each(|inode| inode.unreadable.clear());
        state.armed.fail_reads = None;
    }

    /// Makes `count` reads fail with EIO, whatever they read, after `skipped` reads that work. A power cut cancels this.
    pub fn fail_reads(&self, skipped: u64, count: u64) {
        let mut state = self.state.lock();
        let first = state.reads.saturating_add(skipped);
        state.armed.fail_reads = Some(first..first.saturating_add(count));
    }

    /// The number of reads so far.
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// The number of failed reads so far.
    pub fn failed_reads(&self) -> u64 {
        self.state.lock().failed_reads
    }

    /// The content of a file as reads see it, even if some of its sectors are unreadable. `None` if no file has this
    /// name.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let inode = state.inodes.get(state.names.get(name)?)?;
        Some(inode.current.clone())
    }

    /// Creates a file whose name and bytes are durable. Open files of the same name keep the old content.
    pub fn replace(&self, name: &str, contents: Vec<u8>) {
        let mut state = self.state.lock();
        let number =
            state.add_inode(Inode { durable_length: contents.len(), current: contents, ..Inode::default() });
        state.change_name(NameChange { certain: true, ..NameChange::new(number, None, Some(name)) });
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        self.state.lock().names.keys().cloned().collect()
    }

    /// An independent copy of the cache and the durable state, with the power on, no open files, and no requested cut
    /// or failure. The settings of [`lie_about`](Disk::lie_about), [`set_capacity`](Disk::set_capacity) and
    /// [`set_read_only`](Disk::set_read_only) are copied.
    pub fn fork(&self) -> Disk {
        let mut copy = self.state.lock().clone();
        copy.off = false;
        copy.armed = Armed::default();
        copy.end_process();
        Self::from_state(copy)
    }

    /// Makes all further random decisions follow from `seed`. The numbers of [`Storage::random`] continue as before,
    /// because they must not repeat on one disk.
    pub fn reseed(&self, seed: u64) {
        self.state.lock().chance = Random { state: seed };
    }

    fn powered(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let state = self.state.lock();
        if state.off { Err(power_is_off()) } else { Ok(state) }
    }

    fn powered_to_write(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let state = self.powered()?;
        if state.read_only {
            return Err(os_error(EROFS));
        }
        Ok(state)
    }
}

impl Storage for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.powered()?.names.keys().cloned().collect())
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut state = if mode == OpenMode::Read { self.powered()? } else { self.powered_to_write()? };
        let number = if mode == OpenMode::Create { state.create(name)? } else { state.find(name)? };
        state.inode_mut(number).open_files += 1;
        let epoch = state.epoch;
        Ok(Arc::new(OpenFile { disk: self.clone(), epoch, number, writable: mode != OpenMode::Read }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.powered_to_write()?;
        let number = state.find(from)?;
        state.perform_name_change(DiskStep::Rename, NameChange::new(number, Some(from), Some(to)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.powered_to_write()?;
        let number = state.find(name)?;
        state.perform_name_change(DiskStep::Remove, NameChange::new(number, Some(name), None))
    }

    fn sync_folder(&self, point: SyncPoint) -> io::Result<()> {
        let mut state = self.powered_to_write()?;
        let verdict = state.begin(DiskStep::SyncFolder(point));
        match verdict {
            Verdict::Proceed => state.sync_names(),
            Verdict::Fail => state.sync_names_partly(None),
            Verdict::Cut if state.lied_about != Some(point) => state.sync_names_partly(None),
            Verdict::Cut | Verdict::Lie => {}
        }
        verdict.outcome()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        let mut state = self.powered()?;
        if std::mem::replace(&mut state.locked, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(HeldLock { disk: self.clone(), epoch: state.epoch })))
    }

    fn random(&self) -> u64 {
        self.state.lock().salts.next()
    }

    fn location(&self) -> String {
        "simulated disk".to_owned()
    }
}
