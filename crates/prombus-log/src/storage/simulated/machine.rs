//! The simulated machine: its files, their names, the durable part of both, and the outcome of each operation.

use super::chance::{Fate, Random};
use super::disk_step::DiskStep;
use super::errors::{EIO, ENOSPC, os_error, power_is_off};
use super::inode::Inode;
use super::name_change::NameChange;
use crate::storage::SyncPoint;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The machine. All maps are ordered, because random decisions must not depend on the order of a hash map.
#[derive(Clone)]
pub(super) struct Machine {
    /// Decides which unsynced writes are lost or torn.
    pub(super) chance: Random,
    /// Source of `Storage::random`.
    pub(super) salts: Random,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    /// The folder as the process sees it.
    pub(super) names: BTreeMap<String, u64>,
    /// The folder as it is on disk.
    pub(super) durable_names: BTreeMap<String, u64>,
    /// The changes from `durable_names` to `names`, oldest first.
    pub(super) pending: Vec<NameChange>,
    /// The number of the current process. Files and locks of earlier processes are dead.
    pub(super) epoch: u64,
    pub(super) locked: bool,
    pub(super) off: bool,
    pub(super) last_cut: Option<DiskStep>,
    pub(super) operations: u64,
    pub(super) reads: u64,
    pub(super) failed_reads: u64,
    pub(super) armed: Armed,
    pub(super) lied_about: Option<SyncPoint>,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) read_only: bool,
}

/// Faults that were requested and have not happened yet. `cut_at` and `fail_at` are values of `Machine::operations`.
#[derive(Clone, Default)]
pub(super) struct Armed {
    pub(super) cut_at: Option<u64>,
    pub(super) fail_at: Option<u64>,
    pub(super) fail_syncs: Vec<SyncPoint>,
    pub(super) fail_write: bool,
    /// A range of values of `Machine::reads`.
    pub(super) fail_reads: Option<std::ops::Range<u64>>,
}

/// The outcome of a mutating operation.
#[derive(Clone, Copy)]
pub(super) enum Verdict {
    Proceed,
    /// The operation reports success without doing anything.
    Lie,
    Fail,
    /// The power goes off during the operation.
    Cut,
}

impl Verdict {
    pub(super) fn outcome(self) -> io::Result<()> {
        match self {
            Verdict::Proceed | Verdict::Lie => Ok(()),
            Verdict::Fail => Err(os_error(EIO)),
            Verdict::Cut => Err(power_is_off()),
        }
    }
}

impl Machine {
    /// Counts an operation and decides its outcome.
    pub(super) fn begin(&mut self, step: DiskStep) -> Verdict {
        self.operations += 1;
        if self.armed.cut_at == Some(self.operations) {
            self.off = true;
            self.last_cut = Some(step);
            return Verdict::Cut;
        }
        let fails_by_step = match step {
            DiskStep::Write => std::mem::take(&mut self.armed.fail_write),
            DiskStep::Sync(point) | DiskStep::SyncFolder(point) => {
                let requested = self.armed.fail_syncs.iter().position(|&requested| requested == point);
                requested.map(|index| self.armed.fail_syncs.remove(index)).is_some()
            }
            DiskStep::Rename | DiskStep::Remove | DiskStep::Create => false,
        };
        let fails_by_count = self.armed.fail_at.take_if(|at| *at == self.operations).is_some();
        match step {
            _ if fails_by_step || fails_by_count => Verdict::Fail,
            DiskStep::Sync(point) | DiskStep::SyncFolder(point) if self.lied_about == Some(point) => {
                Verdict::Lie
            }
            _ => Verdict::Proceed,
        }
    }

    pub(super) fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("a file that has a name or is open has an inode")
    }

    pub(super) fn add_inode(&mut self, inode: Inode) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, inode);
        number
    }

    pub(super) fn create(&mut self, name: &str) -> io::Result<u64> {
        if self.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.capacity_bytes.is_some_and(|capacity| self.used_bytes() >= capacity) {
            return Err(os_error(ENOSPC));
        }
        let number = self.add_inode(Inode::default());
        self.perform_name_change(DiskStep::Create, NameChange::new(number, None, Some(name)))?;
        Ok(number)
    }

    pub(super) fn perform_name_change(&mut self, step: DiskStep, change: NameChange) -> io::Result<()> {
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

    pub(super) fn change_name(&mut self, change: NameChange) {
        if change.apply(&mut self.names) {
            self.pending.push(change);
        }
    }

    pub(super) fn sync_names(&mut self) {
        self.durable_names.clone_from(&self.names);
        self.pending.clear();
        self.collect_inodes();
    }

    /// Makes some of the pending name changes durable. The others stay pending. A change has no effect if it depends on a
    /// change that was lost.
    pub(super) fn sync_names_partly(&mut self, fate: Option<Fate>) {
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

    /// Applies a power cut: decides which writes survive. The result is both durable and what reads see.
    pub(super) fn settle(&mut self) {
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

    pub(super) fn end_process(&mut self) {
        self.epoch += 1;
        self.locked = false;
        for inode in self.inodes.values_mut() {
            inode.open_files = 0;
        }
        self.collect_inodes();
    }

    /// Drops the inodes that cannot be reached.
    pub(super) fn collect_inodes(&mut self) {
        let named = self.names.values().chain(self.durable_names.values()).copied();
        let reachable: BTreeSet<u64> = named.chain(self.pending.iter().map(|change| change.number)).collect();
        self.inodes.retain(|number, inode| inode.open_files > 0 || reachable.contains(number));
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names
            .values()
            .filter_map(|number| self.inodes.get(number))
            .map(|inode| inode.current.len() as u64)
            .sum()
    }

    /// How many of `length` bytes at `start` fit within the capacity.
    pub(super) fn fitting_bytes(&mut self, number: u64, start: usize, length: usize) -> usize {
        let Some(capacity) = self.capacity_bytes else {
            return length;
        };
        let free = usize::try_from(capacity.saturating_sub(self.used_bytes())).unwrap_or(usize::MAX);
        let end_of_space = self.inode_mut(number).current.len().saturating_add(free);
        length.min(end_of_space.saturating_sub(start))
    }
}
