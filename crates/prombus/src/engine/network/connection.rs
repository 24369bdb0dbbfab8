//! The state that an engine, its committer and its scanners share: the database, and the leader's state in memory.

use super::database::RemoteDatabase;
use super::leader::Leader;
use super::limits::NetworkLimits;
use super::piece::{FetchLimit, Piece};
use crate::engine::{EngineObserver, TopicId};
use crate::error::{ReadError, Unavailable};
use crate::metrics::{COMMIT_EVENTS_BOUNDS, COMMIT_SECONDS_BOUNDS, Histogram};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

pub(super) struct Connection<D> {
    pub(super) limits: NetworkLimits,
    pub(super) database: Arc<D>,
    pub(super) leader: Mutex<Leader>,
    /// Wakes the committer when there is something to do.
    pub(super) changed: Notify,
    /// Wakes callers that wait for room.
    pub(super) room: Condvar,
    /// Wakes `close` when the committer has ended.
    pub(super) ended: Condvar,
    pub(super) observer: OnceLock<Arc<dyn EngineObserver>>,
    pub(super) figures: EngineFigures,
    runtime: Handle,
    /// True when the engine ends: pending reads then fail.
    is_ending: watch::Sender<bool>,
}

pub(super) struct EngineFigures {
    pub(super) commit_duration_seconds: Histogram,
    pub(super) commit_batch_events: Histogram,
    /// The number of damaged events that scans have found.
    corrupt_events: AtomicU64,
}

impl<D: RemoteDatabase> Connection<D> {
    pub(super) fn new(limits: NetworkLimits, database: Arc<D>, leader: Leader, runtime: Handle) -> Self {
        Self {
            limits,
            database,
            leader: Mutex::new(leader),
            changed: Notify::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
            observer: OnceLock::new(),
            figures: EngineFigures {
                commit_duration_seconds: Histogram::new(COMMIT_SECONDS_BOUNDS),
                commit_batch_events: Histogram::new(COMMIT_EVENTS_BOUNDS),
                corrupt_events: AtomicU64::new(0),
            },
            runtime,
            is_ending: watch::Sender::new(false),
        }
    }

    pub(super) fn end(&self) {
        self.leader.lock().availability.is_closing = true;
        self.is_ending.send_replace(true);
        self.changed.notify_one();
        self.room.notify_all();
    }

    /// Runs a read (`question`) on the engine's runtime, and passes the result to `answer`. If the engine ends meanwhile, the
    /// result is an error.
    pub(super) fn read<T: Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, ReadError>> + Send + 'static,
        answer: impl FnOnce(Result<T, ReadError>) + Send + 'static,
    ) {
        let mut is_ending = self.is_ending.subscribe();
        self.runtime.spawn(async move {
            let answered = tokio::select! {
                answered = question => answered,
                _ = is_ending.wait_for(|&is_ending| is_ending) => Err(Unavailable::Closed.into()),
            };
            answer(answered);
        });
    }

    /// Runs work of the database on the engine's runtime, and blocks the thread until it is done. Only for threads that may be
    /// blocked. Returns `None` if the engine ends meanwhile.
    pub(super) fn wait_for<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        // This is not a tokio channel, because the caller may be a thread of another runtime.
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let mut is_ending = self.is_ending.subscribe();
        self.runtime.spawn(async move {
            tokio::select! {
                done = work => {
                    let _ = sender.send(done);
                }
                _ = is_ending.wait_for(|&is_ending| is_ending) => {}
            }
        });
        receiver.recv().ok()
    }

    /// The events of a topic from a seq on, if the tail cache (the newest events, in memory) has them.
    pub(super) fn tail(&self, topic: TopicId, seq: u64, limit: FetchLimit) -> Option<Piece> {
        self.leader.lock().tail.piece(topic, seq, limit)
    }
}

impl EngineFigures {
    pub(super) fn observe(&self, duration: Duration, events: usize) {
        self.commit_duration_seconds.observe(duration.as_secs_f64());
        if events > 0 {
            self.commit_batch_events.observe(events as f64);
        }
    }

    pub(super) fn count_corrupt(&self, events: u64) {
        self.corrupt_events.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn corrupt_events(&self) -> u64 {
        self.corrupt_events.load(Ordering::Relaxed)
    }
}
