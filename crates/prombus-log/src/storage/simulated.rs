//! A disk in memory that loses, reorders and tears whatever was not synced.
//!
//! What a read sees is the page cache; what is durable is kept beside it, in sectors of 512 bytes. A sync of
//! a file makes its bytes and its length durable and not its name; a sync of the folder makes names durable
//! and no bytes. [`Disk::power_cut`] draws what survives of the rest. Everything drawn comes from the seed:
//! the same seed and the same operations lose the same bytes.
//!
//! Here is what tests call; `machine.rs` has the machine with its names, `inode.rs` the sectors of one file, `chance.rs`
//! draws what survives.
//!
//! Not modelled: a sector is never torn inside itself, and what survives of it is its last synced or its
//! newest content, never a version between the two.
//!
//! Files and locks from before a power cut are dead, but a [`Disk`] is the machine, not the process: drop
//! what still works on it before the power comes back.

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

/// The simulated disk. Clones are the same disk; [`fork`](Disk::fork) makes another one.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<Machine>>,
    held_syncs: Arc<HeldSyncs>,
}

/// Where syncs of log data wait while they are held.
#[derive(Default)]
struct HeldSyncs {
    are_held: Mutex<bool>,
    changed: Condvar,
}

impl Disk {
    /// An empty disk, all of whose chances follow from `seed`.
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

    /// Syncs of log data wait until they are no longer held, as on a slow disk.
    pub fn hold_syncs(&self, are_held: bool) {
        *self.held_syncs.are_held.lock() = are_held;
        self.held_syncs.changed.notify_all();
    }

    /// Cuts the power, settles what survived, and switches the power on again. Files and locks from before
    /// are dead, and cuts and failures that were asked for and did not happen yet are forgotten.
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

    /// The power goes off at the `operations`-th mutating operation from now: 1 is the next one, 0 is at
    /// once.
    ///
    /// That operation may still take effect in part or as a whole. It and everything after it fail with
    /// "power is off" until [`power_cut`](Disk::power_cut).
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

    /// How many mutating operations the disk has seen. One that is refused before it starts (a read-only
    /// disk, no such file, a create on a full disk) is not counted; one that a fault hits is.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// The operation at which the power last went off; `None` when it was cut between operations.
    pub fn last_cut(&self) -> Option<DiskStep> {
        self.state.lock().last_cut
    }

    /// The process dies and the machine goes on: files and locks are dead, the page cache stays as it is.
    pub fn kill(&self) {
        self.state.lock().end_process();
    }

    /// From now on syncs at this point answer that all is well and do nothing. They still count as
    /// operations.
    pub fn lie_about(&self, point: Option<SyncPoint>) {
        self.state.lock().lied_about = point;
    }

    /// The next sync at this point fails with EIO, also when the point is lied about.
    ///
    /// As on Linux, part of the dirty sectors has become durable by then, and the others count as clean:
    /// reads see them, but no later sync writes them unless they are written again. Names that did not become
    /// durable stay pending.
    pub fn fail_next_sync(&self, point: SyncPoint) {
        self.state.lock().armed.fail_syncs.push(point);
    }

    /// The next write fails with EIO after any part of it, from its start, was written.
    pub fn fail_next_write(&self) {
        self.state.lock().armed.fail_write = true;
    }

    /// The `operations`-th mutating operation from now (1 is the next one) fails with EIO, once. A write or a
    /// sync leaves what it leaves after [`fail_next_write`](Disk::fail_next_write) or
    /// [`fail_next_sync`](Disk::fail_next_sync); any other operation has no effect.
    pub fn fail_at(&self, operations: u64) {
        let mut state = self.state.lock();
        state.armed.fail_at = Some(state.operations.saturating_add(operations.max(1)));
    }

    /// Limits the lengths of all files together. A write that needs more writes what fits and fails; on a
    /// full disk no file can be created. Both errors are of kind `StorageFull`.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.state.lock().capacity_bytes = capacity_bytes;
    }

    /// The lengths of all files that have a name, together.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// Lets every mutating operation, and opening a file to write, fail with EROFS.
    pub fn set_read_only(&self, read_only: bool) {
        self.state.lock().read_only = read_only;
    }

    /// Flips a bit of a file, in the cache and in what is durable.
    ///
    /// # Panics
    ///
    /// When there is no such file, byte or bit: a test that flips nothing proves nothing.
    pub fn flip_bit(&self, name: &str, position: u64, bit: u8) {
        assert!(bit < 8, "a byte has no bit {bit}");
        let mut state = self.state.lock();
        let inode = state.names.get(name).copied().and_then(|number| state.inodes.get_mut(&number));
        let byte = usize::try_from(position).ok();
        let flipped = inode.zip(byte).is_some_and(|(inode, byte)| inode.flip_bit(byte, bit));
        assert!(flipped, "no byte {position} in a file {name}");
    }

    /// From now on the sectors of a file that hold these bytes cannot be read: EIO. It stays so over power cuts and renames,
    /// until [`make_readable`](Disk::make_readable) or until the whole sector is written again.
    ///
    /// # Panics
    ///
    /// When there is no such file: a test that damages nothing proves nothing.
    pub fn make_unreadable(&self, name: &str, bytes: std::ops::Range<u64>) {
        let mut state = self.state.lock();
        let number = state.names.get(name).copied().unwrap_or_else(|| panic!("no file {name}"));
        let sectors = bytes.start as usize / SECTOR_BYTES..(bytes.end as usize).div_ceil(SECTOR_BYTES);
        state.inode_mut(number).unreadable.extend(sectors);
    }

    /// All sectors of all files can be read again.
    pub fn make_readable(&self) {
        let mut state = self.state.lock();
        state.inodes.values_mut().for_each(|inode| inode.unreadable.clear());
        state.armed.fail_reads = None;
    }

    /// Reads fail with EIO, whatever they read: `count` of them, after `skipped` that work. Forgotten with a power cut.
    pub fn fail_reads(&self, skipped: u64, count: u64) {
        let mut state = self.state.lock();
        let first = state.reads.saturating_add(skipped);
        state.armed.fail_reads = Some(first..first.saturating_add(count));
    }

    /// How many reads the disk has seen.
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// How many reads failed.
    pub fn failed_reads(&self) -> u64 {
        self.state.lock().failed_reads
    }

    /// What a read of the whole file would see, if all of it could be read.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let inode = state.inodes.get(state.names.get(name)?)?;
        Some(inode.current.clone())
    }

    /// Puts a new file there, durable in name and bytes. Open files of that name keep the old one.
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

    /// An independent copy, cache and durable state alike, with the power on, nothing open, and no cut or
    /// failure ahead. Lies, capacity and read-only are copied.
    pub fn fork(&self) -> Disk {
        let mut copy = self.state.lock().clone();
        copy.off = false;
        copy.armed = Armed::default();
        copy.end_process();
        Self::from_state(copy)
    }

    /// Lets all further chances follow from `seed`. The salts of [`Storage::random`] go on as they were: they
    /// must not come twice on one disk.
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
