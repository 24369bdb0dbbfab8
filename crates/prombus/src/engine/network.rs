//! The engine for databases on a network: the part that does not depend on the kind of database. Each kind implements
//! [`RemoteDatabase`]. At any time one engine *leads* a database: only that engine may write. It is *deposed* when another
//! process takes over.
//!
//! ```text
//! NetworkEngine ── leader: topics, queue, ids, commit times, the newest events
//!    committer ──▶ RemoteDatabase::commit, one at a time
//!    scanners  ──▶ RemoteDatabase::fetch
//! ```
//!
//! **Invariants:** only the committer calls the observer, one call at a time. At most one commit is in flight. A deposed engine
//! commits nothing. The outcomes of published events become known with their commit.

mod change;
mod clean;
mod committer;
mod connection;
mod database;
mod found_state;
mod id_maker;
mod leader;
mod limits;
mod pending_commit;
mod piece;
mod scanner;
mod tail;

pub use change::{Change, CommitAnswer, EncodedRecord, EventDocument, QueuedEvent};
pub use database::{CommitError, DeadEvents, RemoteDatabase, RemoveError, Removed};
pub use found_state::FoundState;
pub use id_maker::has_id_mark;
pub use limits::NetworkLimits;
pub use pending_commit::PendingCommit;
pub use piece::{FetchLimit, Piece, ReadableSeqs};

use super::lookup::Lookup;
use super::may_block::MayBlock;
use super::outcomes::{Appended, Published};
use super::{
    AppendBatch, Cleaned, CommitTimes, Engine, EngineCapabilities, EngineObserver, EventHead, EventId,
    EventScanner, Liveness, RestoredState, StateRecord, StoredTopic, TopicId, TopicUsage,
};
use crate::clock::Clock;
use crate::error::{OpenError, ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use committer::Committer;
use connection::Connection;
use leader::Leader;
use prombus_protocol::Topic;
use scanner::NetworkScanner;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The interval at which a caller that waits for room checks whether the engine has ended.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// An engine over a database on a network. The engine ends when it is closed or dropped; the database remains.
pub struct NetworkEngine<D: RemoteDatabase> {
    connection: Arc<Connection<D>>,
    clock: Arc<dyn Clock>,
    restored: RestoredState,
    /// `Some` until the engine is dropped. Dropping a runtime blocks the thread, so the engine shuts the runtime down in the
    /// background instead.
    runtime: Option<Runtime>,
}

/// Creates the runtime of an engine. The engine's database may use it before the engine starts.
///
/// # Errors
/// When no thread can be started.
pub fn network_runtime(threads: usize) -> Result<Runtime, OpenError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads.max(1)).thread_name("prombus-network").enable_all();
    builder.build().map_err(OpenError::Thread)
}

impl<D: RemoteDatabase> NetworkEngine<D> {
    /// Starts an engine that leads the database. It talks to the database on `runtime`.
    pub fn start(
        database: Arc<D>,
        found: FoundState,
        limits: NetworkLimits,
        clock: Arc<dyn Clock>,
        runtime: Runtime,
    ) -> Self {
        let leader = Leader::new(limits.clone(), &found, database.availability());
        let connection = Arc::new(Connection::new(limits, database, leader, runtime.handle().clone()));
        runtime.spawn(Committer::new(Arc::clone(&connection)).run());
        Self { connection, clock, restored: found.restored, runtime: Some(runtime) }
    }

    /// The database.
    pub fn database(&self) -> &Arc<D> {
        &self.connection.database
    }

    /// Changes the leader's state in memory, and notifies the committer.
    fn change<T>(&self, change: impl FnOnce(&mut Leader) -> T) -> T {
        let changed = change(&mut self.connection.leader.lock());
        self.connection.changed.notify_one();
        changed
    }

    /// Queries the database about a topic.
    fn ask<T, F>(
        &self,
        topic: TopicId,
        question: impl FnOnce(Arc<D>, ReadableSeqs) -> F + Send + 'static,
    ) -> Lookup<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ReadError>> + Send + 'static,
    {
        let readable = match self.connection.leader.lock().readable(topic) {
            Ok(readable) => readable,
            Err(error) => return Lookup::ready(Err(error)),
        };
        let (sender, lookup) = Lookup::pending();
        let database = Arc::clone(&self.connection.database);
        self.connection.read(async move { question(database, readable).await }, move |answer| {
            // The caller may have stopped waiting.
            let _ = sender.send(answer);
        });
        lookup
    }
}

impl<D: RemoteDatabase> Drop for NetworkEngine<D> {
    fn drop(&mut self) {
        self.connection.end();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl<D: RemoteDatabase> Engine for NetworkEngine<D> {
    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            is_durable: true,
            has_local_files: false,
            reads_locally: false,
            compaction_bytes_min: self.connection.limits.compaction_bytes_min,
        }
    }

    fn observe(&self, observer: Arc<dyn EngineObserver>) {
        let is_first = self.connection.observer.set(observer).is_ok();
        debug_assert!(is_first, "an engine has one observer");
        self.connection.changed.notify_one();
    }

    fn restored(&self) -> RestoredState {
        self.restored.clone()
    }

    fn append(
        &self,
        batch: &AppendBatch<'_>,
        _outcomes: &mut Vec<Published>,
    ) -> Result<Appended, StoreError> {
        // Encodes the events here, not in the committer, so that this happens while the previous commit is in flight; and not under
        // the lock, so that other callers do not wait.
        let has_room = self.connection.leader.lock().has_room();
        let prepare = |event| self.connection.database.prepare(event);
        let prepared = if has_room { batch.events.iter().map(prepare).collect() } else { Vec::new() };
        self.change(|leader| leader.append(batch, prepared, self.clock.wall_ms()))
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
            let appended =
                leader.append(&AppendBatch::of_records(&records), Vec::new(), self.clock.wall_ms())?;
            leader.note_cut(appended.commit, firsts);
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
        Box::new(NetworkScanner::new(Arc::clone(&self.connection)))
    }

    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>> {
        self.ask(topic, move |database, seqs| async move {
            Ok(database.head_in(topic, seqs).await?.map(|head| head.seq))
        })
    }

    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>> {
        self.ask(topic, move |database, seqs| async move {
            let first_seq = seq.max(seqs.first_seq);
            database.head_in(topic, ReadableSeqs { first_seq, ..seqs }).await
        })
    }

    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>> {
        self.ask(topic, move |database, seqs| async move { database.find(topic, id, seqs).await })
    }

    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>> {
        self.ask(
            topic,
            move |database, seqs| async move { database.first_at_or_after(topic, ts, seqs).await },
        )
    }

    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>> {
        self.ask(
            topic,
            move |database, seqs| async move { database.have_keys_before(topic, keys, seqs).await },
        )
    }

    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64> {
        self.ask(
            topic,
            move |database, seqs| async move { database.first_within_bytes(topic, bytes, seqs).await },
        )
    }

    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>> {
        let readable: Vec<_> = {
            let leader = self.connection.leader.lock();
            topics.iter().map(|&topic| (topic, leader.readable(topic).ok())).collect()
        };
        let (sender, lookup) = Lookup::pending();
        let database = Arc::clone(&self.connection.database);
        let question = async move {
            let mut usage = Vec::with_capacity(readable.len());
            for (topic, seqs) in readable {
                usage.push(match seqs {
                    Some(seqs) => database.usage(topic, seqs).await?,
                    None => None,
                });
            }
            Ok(usage)
        };
        self.connection.read(question, move |answer| {
            let _ = sender.send(answer);
        });
        lookup
    }

    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        _may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable> {
        clean::clean(&self.connection, liveness, compact)
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures {
            commit_duration_seconds: self.connection.figures.commit_duration_seconds.figures(),
            commit_batch_events: self.connection.figures.commit_batch_events.figures(),
            bytes: self.connection.database.bytes(),
            corrupt_events: self.connection.figures.corrupt_events(),
            ..StoreFigures::default()
        }
    }

    fn backup_hint(&self) -> Option<String> {
        self.connection.database.backup_hint()
    }

    fn close(&self, _may_block: MayBlock) -> Result<(), Unavailable> {
        self.connection.end();
        let mut leader = self.connection.leader.lock();
        while !leader.availability.is_ended {
            self.connection.ended.wait(&mut leader);
        }
        match &leader.availability.stopped {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }
}
