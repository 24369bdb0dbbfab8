//! The maintaining part of a log: the manifest, retired segments and checkpoints behind one lock, long jobs, and accepted
//! losses.
//!
//! **Lock order:** the maintenance lock first, then those of the append queue and of the committed log. Neither of those
//! parts knows this one.

use crate::accepted_losses::Losses;
use crate::context::Context;
use crate::maintain::long_jobs::{Jobs, Pace};
use crate::maintain::work::Work;
use crate::manifest::Manifest;
use crate::read::committed_log::CommittedLog;
use crate::step::Step;
use crate::write::append_queue::AppendQueue;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Maintains the files of a log.
pub(crate) struct Maintenance {
    pub(crate) context: Arc<Context>,
    pub(crate) committed: Arc<CommittedLog>,
    pub(crate) queue: Arc<AppendQueue>,
    work: Mutex<Work>,
    pub(crate) jobs: Jobs,
    /// Unreadable places that count as damaged.
    pub(super) losses: Mutex<Losses>,
}

impl Maintenance {
    pub(crate) fn new(work: Work, losses: Losses) -> Self {
        Self {
            context: Arc::clone(&work.context),
            committed: Arc::clone(&work.committed),
            queue: Arc::clone(&work.queue),
            work: Mutex::new(work),
            jobs: Jobs::default(),
            losses: Mutex::new(losses),
        }
    }

    /// Does the most urgent piece of work.
    pub(crate) fn step(&self) -> Step {
        self.work.lock().step()
    }

    /// At close: does what a later open would otherwise have to do, and nothing after it.
    pub(crate) fn finish(&self) {
        self.work.lock().finish();
    }

    /// The maintenance lock; `None` when the log is closed.
    pub(crate) fn work(&self) -> Option<MutexGuard<'_, Work>> {
        Some(self.work.lock()).filter(|work| !work.is_finished)
    }

    /// The manifest at this moment.
    pub(crate) fn manifest(&self) -> Manifest {
        self.work.lock().catalog.manifest.clone()
    }

    /// Lets a job take this share of the time.
    pub(crate) fn pace(&self, duty_percent: u8) -> Pace<'_> {
        Pace::new(&self.jobs, &self.queue, self.context.options.threads, duty_percent)
    }
}
