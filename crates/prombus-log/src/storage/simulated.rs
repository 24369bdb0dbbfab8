//! A disk in memory that loses, reorders and tears whatever was not synced.
//!
//! What a read sees is the page cache; what is durable is kept beside it, in sectors of 512 bytes. A sync of
//! a file makes its bytes and its length durable and not its name; a sync of the folder makes names durable
//! and no bytes. [`Disk::power_cut`] draws what survives of the rest. Everything drawn comes from the seed:
//! the same seed and the same operations lose the same bytes.
//!
//! Here is what tests call and the machine with its names; `inode.rs` has the sectors of one file, `chance.rs` draws what
//! survives.
//!
//! Not modelled: a sector is never torn inside itself, and what survives of it is its last synced or its
//! newest content, never a version between the two.
//!
//! Files and locks from before a power cut are dead, but a [`Disk`] is the machine, not the process: drop
//! what still works on it before the power comes back.

use super::{Lock, OpenMode, Storage, StorageFile, SyncPoint};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

mod chance;
mod inode;
#[cfg(test)]
mod tests;

use chance::{Fate, Random};
use inode::Inode;

const SECTOR_BYTES: usize = 512;
/// A write beyond this is a wrong position; answering it with an error beats allocating it.
const LARGEST_FILE_BYTES: u64 = 1 << 30;

const EIO: i32 = 5;
const EBADF: i32 = 9;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

/// The simulated disk. Clones are the same disk; [`fork`](Disk::fork) makes another one.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    held_syncs: Arc<HeldSyncs>,
}

/// Where syncs of log data wait while they are held.
#[derive(Default)]
struct HeldSyncs {
    are_held: Mutex<bool>,
    changed: Condvar,
}

/// A mutating operation: what [`Disk::cut_after`] counts and what [`Disk::last_cut`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Bytes were written into a file.
    Write,
    /// A file was synced.
    Sync(SyncPoint),
    /// The folder was synced.
    SyncFolder(SyncPoint),
    /// A file was renamed.
    Rename,
    /// A file was removed.
    Remove,
    /// A file was created.
    Create,
}

impl Disk {
    /// An empty disk, all of whose chances follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::from_state(State {
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

    fn from_state(state: State) -> Self {
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
    pub fn last_cut(&self) -> Option<Step> {
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

    fn powered(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.off { Err(power_is_off()) } else { Ok(state) }
    }

    fn powered_to_write(&self) -> io::Result<MutexGuard<'_, State>> {
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
        state.perform_name_change(Step::Rename, NameChange::new(number, Some(from), Some(to)))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.powered_to_write()?;
        let number = state.find(name)?;
        state.perform_name_change(Step::Remove, NameChange::new(number, Some(name), None))
    }

    fn sync_folder(&self, point: SyncPoint) -> io::Result<()> {
        let mut state = self.powered_to_write()?;
        let verdict = state.begin(Step::SyncFolder(point));
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

struct OpenFile {
    disk: Disk,
    /// The process that opened it; in any other one the file is dead.
    epoch: u64,
    number: u64,
    writable: bool,
}

impl OpenFile {
    fn alive(&self, state: &State) -> io::Result<()> {
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
        let verdict = state.begin(Step::Write);
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
        let verdict = state.begin(Step::Sync(point));
        let honest = state.lied_about != Some(point);
        let State { inodes, chance, .. } = &mut *state;
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

struct HeldLock {
    disk: Disk,
    epoch: u64,
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

/// The machine. All maps are ordered, because what is drawn must not depend on the order of a hash.
#[derive(Clone)]
struct State {
    /// Decides what is lost and torn.
    chance: Random,
    /// Answers [`Storage::random`].
    salts: Random,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// The folder as the process sees it.
    names: BTreeMap<String, u64>,
    /// The folder as it is on disk.
    durable_names: BTreeMap<String, u64>,
    /// What leads from `durable_names` to `names`, oldest first.
    pending: Vec<NameChange>,
    /// Counts the processes that the machine has run; files and locks of earlier ones are dead.
    epoch: u64,
    locked: bool,
    off: bool,
    last_cut: Option<Step>,
    operations: u64,
    reads: u64,
    failed_reads: u64,
    armed: Armed,
    lied_about: Option<SyncPoint>,
    capacity_bytes: Option<u64>,
    read_only: bool,
}

/// Faults that were asked for and did not happen yet. Positions are values of `State::operations`.
#[derive(Clone, Default)]
struct Armed {
    cut_at: Option<u64>,
    fail_at: Option<u64>,
    fail_syncs: Vec<SyncPoint>,
    fail_write: bool,
    /// By the value of `State::reads`.
    fail_reads: Option<std::ops::Range<u64>>,
}

/// What becomes of a mutating operation.
#[derive(Clone, Copy)]
enum Verdict {
    Proceed,
    /// Answers that all is well and does nothing.
    Lie,
    Fail,
    /// The power goes off in the middle of it.
    Cut,
}

impl Verdict {
    fn outcome(self) -> io::Result<()> {
        match self {
            Verdict::Proceed | Verdict::Lie => Ok(()),
            Verdict::Fail => Err(os_error(EIO)),
            Verdict::Cut => Err(power_is_off()),
        }
    }
}

impl State {
    /// Counts an operation and decides what becomes of it.
    fn begin(&mut self, step: Step) -> Verdict {
        self.operations += 1;
        if self.armed.cut_at == Some(self.operations) {
            self.off = true;
            self.last_cut = Some(step);
            return Verdict::Cut;
        }
        let fails_by_step = match step {
            Step::Write => std::mem::take(&mut self.armed.fail_write),
            Step::Sync(point) | Step::SyncFolder(point) => {
                let asked = self.armed.fail_syncs.iter().position(|&asked| asked == point);
                asked.map(|index| self.armed.fail_syncs.remove(index)).is_some()
            }
            Step::Rename | Step::Remove | Step::Create => false,
        };
        let fails_by_count = self.armed.fail_at.take_if(|at| *at == self.operations).is_some();
        match step {
            _ if fails_by_step || fails_by_count => Verdict::Fail,
            Step::Sync(point) | Step::SyncFolder(point) if self.lied_about == Some(point) => Verdict::Lie,
            _ => Verdict::Proceed,
        }
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("whatever has a name or is open has an inode")
    }

    fn add_inode(&mut self, inode: Inode) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, inode);
        number
    }

    fn create(&mut self, name: &str) -> io::Result<u64> {
        if self.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.capacity_bytes.is_some_and(|capacity| self.used_bytes() >= capacity) {
            return Err(os_error(ENOSPC));
        }
        let number = self.add_inode(Inode::default());
        self.perform_name_change(Step::Create, NameChange::new(number, None, Some(name)))?;
        Ok(number)
    }

    fn perform_name_change(&mut self, step: Step, change: NameChange) -> io::Result<()> {
        let verdict = self.begin(step);
        let takes_effect = match verdict {
            Verdict::Proceed | Verdict::Lie => true,
            Verdict::Fail => false,
            Verdict::Cut => self.chance.below(2) == 0,
        };
        if takes_effect {
            self.change_name(change);
        }
        verdict.outcome()
    }

    fn change_name(&mut self, change: NameChange) {
        if change.apply(&mut self.names) {
            self.pending.push(change);
        }
    }

    fn sync_names(&mut self) {
        self.durable_names.clone_from(&self.names);
        self.pending.clear();
        self.collect_inodes();
    }

    /// Makes some of the pending changes durable; the others stay pending. A change that needs one that was
    /// lost, or that a lost one would have made room for, has no effect.
    fn sync_names_partly(&mut self, fate: Option<Fate>) {
        let fate = fate.unwrap_or_else(|| Fate::draw(&mut self.chance, self.pending.len()));
        if matches!(fate, Fate::Kept) {
            return self.sync_names();
        }
        let mut index = 0;
        self.pending.retain(|change| {
            let kept = fate.keeps(&mut self.chance, index) || change.certain;
            index += 1;
            !(kept && change.apply(&mut self.durable_names))
        });
    }

    /// The loss of a power cut: what survives is from now on both durable and what reads see.
    fn settle(&mut self) {
        let fate = Fate::draw_for_the_disk(&mut self.chance);
        self.sync_names_partly(fate);
        self.pending.clear();
        self.names.clone_from(&self.durable_names);
        let survivors: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|number, _| survivors.contains(number));
        for inode in self.inodes.values_mut() {
            inode.settle(&mut self.chance, fate);
        }
    }

    fn end_process(&mut self) {
        self.epoch += 1;
        self.locked = false;
        for inode in self.inodes.values_mut() {
            inode.open_files = 0;
        }
        self.collect_inodes();
    }

    /// Drops the inodes that nothing can reach again.
    fn collect_inodes(&mut self) {
        let named = self.names.values().chain(self.durable_names.values()).copied();
        let reachable: BTreeSet<u64> = named.chain(self.pending.iter().map(|change| change.number)).collect();
        self.inodes.retain(|number, inode| inode.open_files > 0 || reachable.contains(number));
    }

    fn used_bytes(&self) -> u64 {
        self.names
            .values()
            .filter_map(|number| self.inodes.get(number))
            .map(|inode| inode.current.len() as u64)
            .sum()
    }

    /// How many of `length` bytes at `start` the capacity lets a file take.
    fn fitting_bytes(&mut self, number: u64, start: usize, length: usize) -> usize {
        let Some(capacity) = self.capacity_bytes else {
            return length;
        };
        let free = usize::try_from(capacity.saturating_sub(self.used_bytes())).unwrap_or(usize::MAX);
        let end_of_space = self.inode_mut(number).current.len().saturating_add(free);
        length.min(end_of_space.saturating_sub(start))
    }
}

/// One change of the folder: a name gone, a name new, or both at once. It knows its inode, so that it never
/// hits another file that has the name by then.
#[derive(Clone)]
struct NameChange {
    number: u64,
    from: Option<String>,
    to: Option<String>,
    /// Durable from the start and in any case; it waits among the others only to stay in order with them.
    certain: bool,
}

impl NameChange {
    fn new(number: u64, from: Option<&str>, to: Option<&str>) -> Self {
        Self { number, from: from.map(str::to_owned), to: to.map(str::to_owned), certain: false }
    }

    /// Changes `names` and says whether it could.
    fn apply(&self, names: &mut BTreeMap<String, u64>) -> bool {
        let possible = match (&self.from, &self.to) {
            (Some(from), _) => names.get(from) == Some(&self.number),
            (None, Some(to)) => self.certain || !names.contains_key(to),
            (None, None) => false,
        };
        if !possible {
            return false;
        }
        if let Some(from) = &self.from {
            names.remove(from);
        }
        if let Some(to) = &self.to {
            names.insert(to.clone(), self.number);
        }
        true
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("power is off")
}

fn os_error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}
