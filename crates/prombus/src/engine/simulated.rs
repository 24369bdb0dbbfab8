//! An engine behind a simulated network, for tests: commits take a round trip, reads are pending, answers get lost, the
//! network fails and returns, and a second engine on the same database deposes the first.
//!
//! ```text
//! SimulatedEngine ── leader: topics, queue, ids, commit times
//!    committer thread ──▶ Database (compare-and-set on term and commit number)
//!    reader thread ─────▶ Database
//! ```
//!
//! **Invariants:** what an engine reported as committed is in the database once, whatever was lost on the way. An engine that
//! was deposed writes nothing. Outcomes come with the commit. Every choice follows from the seed in [`NetworkOptions`], apart
//! from the order in which threads run.

mod committer;
mod connection;
mod database;
mod id_maker;
mod leader;
mod lease;
mod network;
mod reader;
mod scanner;
mod shared;
#[cfg(test)]
mod tests;
mod topic_events;

pub use database::Database;
pub use network::NetworkOptions;
pub use shared::{LeaseFault, SimulatedStore};

use super::lookup::Lookup;
use super::may_block::MayBlock;
use super::outcomes::{Appended, Published};
use super::{
    AppendBatch, Cleaned, CommitTimes, Engine, EngineCapabilities, EngineObserver, EventHead, EventId,
    EventScanner, Liveness, RestoredState, StateRecord, StoredTopic, TopicId, TopicUsage,
};
use crate::clock::Clock;
use crate::error::{OpenError, ReadError, StoreError, Unavailable};
use crate::metrics::{COMMIT_EVENTS_BOUNDS, COMMIT_MS_BOUNDS, Histogram, StoreFigures};
use committer::Committer;
use connection::{Connection, EngineFigures};
use leader::{Leader, ReadableSeqs};
use parking_lot::{Condvar, Mutex};
use prombus_protocol::Topic;
use reader::Reader;
use scanner::SimulatedScanner;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use topic_events::TopicEvents;

/// A caller that waits for room looks at the world this often.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// An engine on a [`Database`]. It ends when it is closed or dropped; the database stays.
pub struct SimulatedEngine {
    connection: Arc<Connection>,
    clock: Arc<dyn Clock>,
    restored: RestoredState,
}

impl SimulatedEngine {
    /// Opens an engine on a database and takes it over: an engine that led before is deposed with its next commit.
    ///
    /// # Errors
    /// The database contains records that this version does not know, or a thread cannot be started.
    pub fn open(
        database: &Database,
        options: NetworkOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let options = Arc::new(options);
        let found = database.take_over().map_err(OpenError::Groups)?;
        let leader = Leader::new(Arc::clone(&options), database.id_mark(), &found);
        let connection = Arc::new(Connection {
            reader: Reader::new(Arc::clone(&options)),
            options,
            database: database.clone(),
            term: found.term,
            leader: Mutex::new(leader),
            changed: Condvar::new(),
            room: Condvar::new(),
            observer: OnceLock::new(),
            figures: EngineFigures {
                commit_duration_ms: Histogram::new(COMMIT_MS_BOUNDS),
                commit_batch_events: Histogram::new(COMMIT_EVENTS_BOUNDS),
            },
        });
        let engine = Self { connection, clock, restored: found.restored };
        let committer = Committer::new(Arc::clone(&engine.connection));
        start_thread("simulated-commit", move || committer.run())?;
        let connection = Arc::clone(&engine.connection);
        start_thread("simulated-read", move || connection.reader.run())?;
        Ok(engine)
    }

    /// The network fails: until [`resume`](Self::resume) nothing is committed or read. Appends are refused with
    /// [`StoreError::Busy`]. Nothing is committed after this returns.
    pub fn suspend(&self, reason: &str) {
        self.connection.suspend(reason);
    }

    /// The network works again.
    pub fn resume(&self) {
        self.connection.resume();
    }

    /// Changes what the leader keeps in memory, and lets the committer look.
    fn change<T>(&self, change: impl FnOnce(&mut Leader) -> T) -> T {
        let mut leader = self.connection.leader.lock();
        let changed = change(&mut leader);
        drop(leader);
        self.connection.changed.notify_all();
        changed
    }

    /// Asks the database about a topic.
    fn ask<T: Send + 'static>(
        &self,
        topic: TopicId,
        question: impl FnOnce(&TopicEvents, ReadableSeqs) -> T + Send + 'static,
    ) -> Lookup<T> {
        let (sender, lookup) = Lookup::pending();
        let connection = Arc::clone(&self.connection);
        self.connection.reader.request(Box::new(move |can_read| {
            let answer = can_read.and_then(|()| connection.answer(topic, question));
            // The asker may have stopped waiting.
            let _ = sender.send(answer);
        }));
        lookup
    }

    /// The dead events of a topic.
    fn dead_seqs(&self, topic: TopicId, first_seq: u64, liveness: &dyn Liveness, compact: bool) -> Vec<u64> {
        let first_live = first_seq.max(liveness.first_live(topic));
        let is_sparse = compact && liveness.is_sparse(topic);
        let mut seqs = self.connection.database.with_topic(topic, TopicEvents::seqs);
        seqs.retain(|&seq| seq < first_live || (is_sparse && !liveness.is_live(topic, seq)));
        seqs
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(|_| ()).map_err(OpenError::Thread)
}

impl Drop for SimulatedEngine {
    fn drop(&mut self) {
        self.connection.end();
    }
}

impl Engine for SimulatedEngine {
    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            is_durable: true,
            has_local_files: false,
            reads_locally: false,
            compaction_unit_bytes: 64 << 10,
        }
    }

    fn observe(&self, observer: Arc<dyn EngineObserver>) {
        let is_first = self.connection.observer.set(observer).is_ok();
        debug_assert!(is_first, "an engine has one observer");
    }

    fn restored(&self) -> RestoredState {
        self.restored.clone()
    }

    fn append(
        &self,
        batch: &AppendBatch<'_>,
        _outcomes: &mut Vec<Published>,
    ) -> Result<Appended, StoreError> {
        self.change(|leader| leader.append(batch, self.clock.wall_ms()))
    }

    fn durable_commit(&self) -> u64 {
        self.connection.leader.lock().durable_commit
    }

    fn commit_times(&self, closing: i64) -> CommitTimes {
        self.connection.leader.lock().commit_times(closing, self.clock.wall_ms())
    }

    fn wait_for_room(&self, _may_block: MayBlock) -> bool {
        let mut leader = self.connection.leader.lock();
        if !leader.has_room() {
            self.connection.room.wait_for(&mut leader, ROOM_WAIT);
        }
        leader.availability.stopped.is_none() && !leader.availability.is_closing
    }

    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        self.change(|leader| leader.ensure_topic(name))
    }

    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        self.change(|leader| leader.delete_topic(topic, name))
    }

    fn retain_from(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        let records = [StateRecord::Cut { firsts: firsts.to_vec() }];
        self.change(|leader| {
            leader.append(&AppendBatch::of_records(&records), self.clock.wall_ms())?;
            leader.raise_firsts(firsts);
            Ok(())
        })
    }

    fn retained_from(&self, topic: TopicId) -> u64 {
        self.connection.leader.lock().readable(topic).map_or(0, |readable| readable.first_seq)
    }

    fn topics(&self) -> Vec<StoredTopic> {
        self.connection.leader.lock().stored_topics()
    }

    fn last_seq(&self, topic: TopicId) -> u64 {
        self.connection.leader.lock().readable(topic).map_or(0, |readable| readable.last_seq)
    }

    fn appended_seq(&self, topic: TopicId) -> Lookup<u64> {
        self.connection.leader.lock().appended_seq(topic)
    }

    fn is_own_id(&self, id: EventId) -> bool {
        self.connection.leader.lock().is_own_id(id)
    }

    fn scanner(&self) -> Box<dyn EventScanner> {
        Box::new(SimulatedScanner::new(Arc::clone(&self.connection)))
    }

    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>> {
        self.ask(topic, |events, seqs| events.head_in(seqs.first_seq, seqs.last_seq).map(|head| head.seq))
    }

    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>> {
        self.ask(topic, move |events, seqs| events.head_in(seq.max(seqs.first_seq), seqs.last_seq))
    }

    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>> {
        self.ask(topic, move |events, seqs| events.find(id).filter(|&seq| seq <= seqs.last_seq))
    }

    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>> {
        self.ask(topic, move |events, seqs| events.first_at_or_after(ts, seqs.first_seq, seqs.last_seq))
    }

    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>> {
        self.ask(topic, move |events, _| events.have_keys_before(&keys).into_iter().map(Ok).collect())
    }

    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64> {
        self.ask(topic, move |events, _| events.first_within_bytes(bytes))
    }

    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>> {
        let (sender, lookup) = Lookup::pending();
        let connection = Arc::clone(&self.connection);
        self.connection.reader.request(Box::new(move |can_read| {
            let usage = |topic: &TopicId| {
                let usage = connection.answer(*topic, |events, seqs| events.usage(seqs.first_seq)).ok();
                usage.filter(|_| connection.database.has_topic(*topic))
            };
            let _ = sender.send(can_read.map(|()| topics.iter().map(usage).collect()));
        }));
        lookup
    }

    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        _may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable> {
        let mut cleaned = Cleaned::default();
        let topics = self.connection.leader.lock().stored_topics();
        for StoredTopic { id, .. } in topics {
            let dead = self.dead_seqs(id, self.retained_from(id), liveness, compact);
            if dead.is_empty() {
                continue;
            }
            let Connection { database, term, leader, .. } = &*self.connection;
            if leader.lock().availability.suspended.is_some() {
                cleaned.is_cut_short = true;
                break;
            }
            let bytes = database.remove(*term, id, &dead, self.clock.wall_ms());
            cleaned.bytes += bytes.map_err(Unavailable::Deposed)?;
            cleaned.events += dead.len() as u64;
        }
        Ok(cleaned)
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures {
            commit_duration_ms: self.connection.figures.commit_duration_ms.figures(),
            commit_batch_events: self.connection.figures.commit_batch_events.figures(),
            bytes: self.connection.database.bytes(),
            ..StoreFigures::default()
        }
    }

    fn close(&self, _may_block: MayBlock) -> Result<(), Unavailable> {
        self.connection.end();
        let mut leader = self.connection.leader.lock();
        while !leader.availability.is_ended {
            self.connection.changed.wait(&mut leader);
        }
        match &leader.availability.stopped {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }
}
