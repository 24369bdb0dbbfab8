//! What an engine, its threads and its scanners share: the way to the database, and whether it works.

use super::database::Database;
use super::leader::{Leader, ReadableSeqs};
use super::network::NetworkOptions;
use super::reader::Reader;
use super::topic_events::{FetchLimit, Piece, TopicEvents};
use crate::engine::{EngineObserver, TopicId};
use crate::error::ReadError;
use crate::metrics::Histogram;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What an engine, its threads and its scanners share.
pub(super) struct Connection {
    pub(super) options: Arc<NetworkOptions>,
    pub(super) database: Database,
    /// The term in which this engine leads.
    pub(super) term: u64,
    pub(super) leader: Mutex<Leader>,
    /// For the committer: there is something to do. For `close`: the committer has ended.
    pub(super) changed: Condvar,
    /// For callers that wait for room.
    pub(super) room: Condvar,
    pub(super) reader: Reader,
    pub(super) observer: OnceLock<Arc<dyn EngineObserver>>,
    pub(super) figures: EngineFigures,
}

pub(super) struct EngineFigures {
    pub(super) commit_duration_ms: Histogram,
    pub(super) commit_batch_events: Histogram,
}

impl Connection {
    /// Begins an outage. False if there is one.
    pub(super) fn suspend(&self, reason: &str) -> bool {
        let mut leader = self.leader.lock();
        let is_new = leader.availability.suspended.is_none();
        leader.availability.suspended.get_or_insert_with(|| reason.to_owned());
        self.reader.set_suspended(true);
        self.changed.notify_all();
        is_new
    }

    pub(super) fn resume(&self) {
        let mut leader = self.leader.lock();
        leader.availability.suspended = None;
        self.reader.set_suspended(false);
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        self.leader.lock().availability.is_closing = true;
        self.changed.notify_all();
        self.room.notify_all();
        self.reader.close();
    }

    pub(super) fn answer<T>(
        &self,
        topic: TopicId,
        question: impl FnOnce(&TopicEvents, ReadableSeqs) -> T,
    ) -> Result<T, ReadError> {
        let readable = self.leader.lock().readable(topic)?;
        Ok(self.database.with_topic(topic, |events| question(events, readable)))
    }

    /// Newest events that are still in memory.
    pub(super) fn tail(&self, topic: TopicId, seq: u64, limit: FetchLimit) -> Option<Piece> {
        let leader = self.leader.lock();
        let tail = &leader.topics.get(&topic)?.tail;
        tail.front().filter(|(first, _)| *first <= seq)?;
        let events = tail.iter().filter(|(at, _)| (seq..=limit.last_seq).contains(at)).cloned();
        Some(Piece { first_seq: seq, last_seq: limit.last_seq, events: events.collect() })
    }
}

impl EngineFigures {
    pub(super) fn observe(&self, duration: Duration, events: usize) {
        self.commit_duration_ms.observe(duration.as_secs_f64() * 1_000.0);
        if events > 0 {
            self.commit_batch_events.observe(events as f64);
        }
    }
}
