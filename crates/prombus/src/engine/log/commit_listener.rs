//! Forwards the reports of the log to the engine's observer, and measures commits.

use crate::engine::EngineObserver;
use crate::error::Unavailable;
use crate::metrics::{COMMIT_EVENTS_BOUNDS, COMMIT_SECONDS_BOUNDS, Histogram};
use prombus_log::{Committed, Notice, Observer};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) struct CommitListener {
    pub(super) observer: OnceLock<Arc<dyn EngineObserver>>,
    pub(super) commit_duration_seconds: Histogram,
    pub(super) commit_batch_events: Histogram,
    /// Whether the storage is full, as the log last reported.
    pub(super) is_full: AtomicBool,
    /// The newest commit that was reported to the observer.
    pub(super) reported_commit: AtomicU64,
}

impl Default for CommitListener {
    fn default() -> Self {
        Self {
            observer: OnceLock::new(),
            commit_duration_seconds: Histogram::new(COMMIT_SECONDS_BOUNDS),
            commit_batch_events: Histogram::new(COMMIT_EVENTS_BOUNDS),
            is_full: AtomicBool::new(false),
            reported_commit: AtomicU64::new(0),
        }
    }
}

impl Observer for CommitListener {
    fn committed(&self, committed: &Committed<'_>) {
        self.commit_duration_seconds.observe(committed.duration.as_secs_f64());
        if committed.events > 0 {
            self.commit_batch_events.observe(committed.events as f64);
        }
        if let Some(observer) = self.observer.get() {
            let mut newest = committed.runs.iter().map(|run| (run.topic, run.last_seq));
            observer.committed(committed.batch, &mut newest);
        }
        self.reported_commit.store(committed.batch, Ordering::Release);
    }

    fn room(&self) {
        if let Some(observer) = self.observer.get() {
            observer.room();
        }
    }

    fn notice(&self, notice: &Notice) {
        match notice {
            // If only large publishes are refused, the storage does not count as full: `/healthz` and the metric would claim that
            // all publishes are refused, and acks are durable. The log line below names the refused size.
            Notice::StorageFull { refused_bytes, .. } => {
                self.is_full.store(refused_bytes.is_none(), Ordering::Relaxed);
            }
            Notice::StorageFreed => self.is_full.store(false, Ordering::Relaxed),
            _ => {}
        }
        match notice {
            Notice::Damaged(_)
            | Notice::Unreadable { .. }
            | Notice::StorageFull { .. }
            | Notice::CheckpointFailed { .. } => tracing::error!("{notice}"),
            Notice::Poisoned { reason } => {
                tracing::error!("{notice}");
                if let Some(observer) = self.observer.get() {
                    observer.stopped(Unavailable::Poisoned(reason.clone()));
                }
            }
            Notice::TornTail { .. } => tracing::warn!("{notice}"),
            _ => tracing::info!("{notice}"),
        }
    }
}
