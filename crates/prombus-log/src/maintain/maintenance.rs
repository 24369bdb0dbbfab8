//! The part of a log that maintains its files. It owns the maintenance lock, which guards the manifest, retired
//! segments and checkpoints; the long jobs; and the accepted losses.
//!
//! **Lock order:** the maintenance lock first, then the locks of the append queue and the committed log. Neither of those
//! parts calls this one.

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
    /// The maintenance lock.
    work: Mutex<Work>,
    /// Running cleanings and backups.
    pub(crate) jobs: Jobs,
    /// Unreadable ranges that count as damaged.
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

    /// Called at close: writes index files and a checkpoint. No work is done after it.
    pub(crate) fn finish(&self) {
        self.work.lock().finish();
    }

    /// Takes the maintenance lock; `None` if the log is closed.
    pub(crate) fn work(&self) -> Option<MutexGuard<'_, Work>> {
        Some(self.work.lock()).filter(|work| !work.is_finished)
    }

    /// A copy of the present manifest.
    pub(crate) fn manifest(&self) -> Manifest {
        self.work.lock().catalog.manifest.clone()
    }

    /// Limits a job to this percentage of the time.
    pub(crate) fn pace(&self, duty_percent: u8) -> Pace<'_> {
        Pace::new(&self.jobs, &self.queue, self.context.options.threads, duty_percent)
    }
}
