//! Commits on the thread that appends, for a log in memory: there is no disk to wait for, and no thread.

use parking_lot::Mutex;
use prombus_log::{Log, Step};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(super) struct InlineCommits {
    /// Held by the thread that commits.
    turn: Mutex<()>,
    /// The newest commit that something was appended to.
    newest: AtomicU64,
}

impl InlineCommits {
    /// Commits everything up to this commit, unless another thread does, or this one further up: a commit calls the observer, which
    /// may append.
    pub(super) fn commit(&self, log: &Log, commit: u64) {
        self.newest.fetch_max(commit, Ordering::SeqCst);
        while log.durable_batch() < self.newest.load(Ordering::SeqCst) && log.unavailable().is_none() {
            let Some(_turn) = self.turn.try_lock() else { return };
            if !step(log) {
                return;
            }
        }
    }
}

/// Commits, and prepares segments. Returns whether there was anything to do.
fn step(log: &Log) -> bool {
    let has_committed = log.step_commit() == Step::Worked;
    let has_prepared = log.step_housekeeping() == Step::Worked;
    has_committed || has_prepared
}
