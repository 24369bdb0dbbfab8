//! Tells when the records of a group are durable, for tickets that wait for them. The records of a group are
//! numbered; the number is called the generation.

use super::act::GroupRuntime;
use super::cell::GroupCell;
use crate::backend::Durability;
use crate::commit_watch::CommitWatch;
use crate::error::Unavailable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// Tells when the records of a group are durable.
pub(in crate::local) struct GroupRecords {
    runtime: Arc<GroupRuntime>,
    commits: Arc<CommitWatch>,
    cell: Arc<GroupCell>,
}

impl GroupRecords {
    pub(in crate::local) fn new(
        runtime: Arc<GroupRuntime>,
        commits: Arc<CommitWatch>,
        cell: Arc<GroupCell>,
    ) -> Self {
        Self { runtime, commits, cell }
    }
}

impl Durability for GroupRecords {
    fn poll_generation(&self, generation: u64, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        let waiters = &self.cell.waiters;
        if waiters.durable_generation() >= generation {
            return Poll::Ready(Ok(()));
        }
        self.runtime.records.demand();
        if !waiters.wait_for_generation(generation, context.waker()) {
            return Poll::Ready(Ok(()));
        }
        // Checked after the waker is registered, so that a failure in between is not missed.
        match self.commits.unavailable().cloned().or_else(|| self.commits.suspended()) {
            Some(reason) => Poll::Ready(Err(reason)),
            None if waiters.is_refused(generation) => Poll::Ready(Err(Unavailable::StorageFull)),
            None => Poll::Pending,
        }
    }
}

/// Tells when a verdict that gave up an event is durable, that is, when the event's dead letter is durable, which
/// another thread writes.
pub(in crate::local) struct DeadLetterRecords {
    pub(in crate::local) records: Arc<GroupRecords>,
    /// The number of the dead letter.
    pub(in crate::local) dead_letter: u64,
    /// The generation of the record that settles the event; zero until the dead letter was written, postponed or
    /// dropped.
    pub(in crate::local) generation: AtomicU64,
}

impl Durability for DeadLetterRecords {
    fn poll_generation(&self, _generation: u64, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        let cell = &self.records.cell;
        if self.generation.load(Ordering::Acquire) == 0 {
            if cell.waiters.wait_for_dead_letter(self.dead_letter, context.waker()) {
                // A deleted group writes no dead letters.
                if cell.is_deleted() {
                    return Poll::Ready(Ok(()));
                }
                // Checked after the waker is registered, so that a failure in between is not missed.
                let commits = &self.records.commits;
                return match commits.unavailable().cloned().or_else(|| commits.suspended()) {
                    Some(reason) => Poll::Ready(Err(reason)),
                    None => Poll::Pending,
                };
            }
            self.generation.store(cell.changes.lock().current_generation(), Ordering::Release);
        }
        self.records.poll_generation(self.generation.load(Ordering::Acquire), context)
    }
}
