//! The seam between the bus and what keeps its events: an [`Engine`] stores events and group records; groups, leases and
//! redelivery are the work of [`LocalBackend`](crate::LocalBackend), which runs over any engine.
//!
//! An engine may be a log in this process or a database behind a network, so the seam is honest about waiting:
//!
//! - [`EventScanner::poll_scan`] may be pending; a local engine is always ready.
//! - Questions about single events and topics return a [`Lookup`], which may be pending too.
//! - [`Engine::append`] returns a commit number at once. Ids and seqs are known at once, or with the commit
//!   ([`LateOutcomes`]).
//! - A call that may block its thread takes [`MayBlock`], the proof that the thread may be blocked.
//! - Availability can end and return: see [`EngineObserver`].
//!
//! **Atomicity:** a batch is events, then records. Records are never durable without the events before them. Batches become
//! durable in the order of their commit numbers.

mod log;
mod lookup;
mod may_block;
pub mod network;
mod outcomes;
mod shared_store;
#[cfg(feature = "test-util")]
pub mod simulated;
mod state_fold;
mod state_record;

pub use log::{LogEngine, LogEngineOptions};
pub use lookup::Lookup;
pub use may_block::MayBlock;
pub(crate) use may_block::off_async_threads;
pub use outcomes::{Appended, LateOutcomes, Published};
pub use prombus_log::{CommitTimes, Event as StoredEvent, EventId, LiveCount, Liveness, NewEvent, TopicId};
pub use shared_store::{LeaseError, LeaseRecord, LeaseStore, SharedStore, Takeover};
pub use state_fold::{GroupFloors, GroupState, RestoredState, StateFold, TopicProgress};
pub use state_record::{GroupAttempts, GroupProgress, StateRecord};

use crate::error::{BackupError, ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use prombus_protocol::Topic;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCapabilities {
    /// An event that was reported as committed survives a restart.
    pub is_durable: bool,
    /// [`LocalFiles`] is there: backups, and a list of unreadable events.
    pub has_local_files: bool,
    /// Scans and lookups are always ready. They read files of this machine on the calling thread, at most a megabyte per call.
    pub reads_locally: bool,
    /// Compaction is worth its cost when this many bytes of events are dead.
    pub compaction_unit_bytes: u64,
}

/// A batch to append: all of it becomes durable, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendBatch<'a> {
    /// Events, in order.
    pub events: &'a [NewEvent<'a>],
    /// Group records, in order. They follow the events.
    pub records: &'a [StateRecord],
    /// Whether it may use the room that is reserved on a full disk.
    pub use_reserve: bool,
}

impl<'a> AppendBatch<'a> {
    /// A batch of records alone. It may use the reserve.
    pub fn of_records(records: &'a [StateRecord]) -> Self {
        Self { records, use_reserve: true, events: &[] }
    }
}

/// A topic of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTopic {
    /// Its number. Numbers are never used again.
    pub id: TopicId,
    /// Its name.
    pub name: Topic,
    /// The newest durable seq; zero for none.
    pub last_seq: u64,
}

/// What a topic takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicUsage {
    /// Events that are stored, including dead ones that are not cleaned yet.
    pub events: u64,
    /// The bytes they take.
    pub bytes: u64,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The first seq that was not visited.
    pub next_seq: u64,
    /// Seqs in between that retention, compaction or deletion removed.
    pub cleaned: u64,
    /// Seqs in between that are damaged.
    pub corrupt: u64,
}

/// An event without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHead {
    /// Its seq.
    pub seq: u64,
    /// Its id.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// When the engine took it; never falls within a topic.
    pub commit_ms: i64,
    /// Whether the publisher chose the id.
    pub is_client_id: bool,
}

impl From<&StoredEvent<'_>> for EventHead {
    fn from(event: &StoredEvent<'_>) -> Self {
        let &StoredEvent { seq, id, ts, commit_ms, client_id, .. } = event;
        Self { seq, id, ts, commit_ms, is_client_id: client_id }
    }
}

/// A visitor's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The event is taken; continue with the next.
    Next,
    /// The event is not taken; the scan ends before it.
    Stop,
}

/// Reads events in order. It keeps what it read ahead, so each reader has its own.
pub trait EventScanner: Send {
    /// Shows the durable events `from..=to` of a topic, in order, to `visit`, until it returns [`Visit::Stop`] or no more are at
    /// hand. A scan may end before `to`, but makes progress when there is something to read.
    ///
    /// Pending: no event was visited, and the context is woken when the same scan can make progress. What was read for it is
    /// kept until then, also if other scans come in between. One waker is kept.
    ///
    /// # Errors
    /// [`ReadError`] when the events cannot be read now. Damaged events are not an error: they are left out and counted.
    fn poll_scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        context: &mut Context<'_>,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Poll<Result<Scanned, ReadError>>;

    /// Whether a scan of a topic from this seq on takes microseconds and so may run on any thread: the newest events, which are in
    /// memory, include it.
    fn is_in_memory(&self, _topic: TopicId, _from: u64) -> bool {
        false
    }

    /// Limits how many bytes are read ahead.
    fn read_ahead(&mut self, _bytes: usize) {}

    /// The reader takes at most this many more events and bytes: no more need be fetched for it.
    fn expect(&mut self, _events: usize, _bytes: usize) {}

    /// Frees what was read ahead.
    fn rest(&mut self);
}

/// What an engine reports. Calls may come from a thread of the engine, one at a time, and must return soon.
pub trait EngineObserver: Send + Sync + 'static {
    /// All batches up to this commit are durable, with these topics' newest seqs. [`LateOutcomes`] of the batches were filled
    /// before.
    fn committed(&self, commit: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>);

    /// Appends that were refused with [`StoreError::Busy`] may be tried again.
    fn room(&self);

    /// The engine cannot commit for now, and tries to. Appends are refused with [`StoreError::Busy`] meanwhile.
    fn suspended(&self, reason: String);

    /// The engine commits again; `room` follows. Appends are refused with [`StoreError::Busy`] until this returns.
    fn resumed(&self);

    /// Another process leads this store now. Nothing is committed any more.
    fn deposed(&self, leader: String);

    /// Writing stopped for good.
    fn stopped(&self, reason: Unavailable);
}

/// What a cleaning removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Events.
    pub events: u64,
    /// The bytes they took.
    pub bytes: u64,
    /// A full or unreadable disk kept it from removing all that is dead.
    pub is_cut_short: bool,
}

/// Stores events and group records.
pub trait Engine: Send + Sync + 'static {
    /// What it can do.
    fn capabilities(&self) -> EngineCapabilities;

    /// Sets the observer. Called once, before anything is appended.
    fn observe(&self, observer: Arc<dyn EngineObserver>);

    /// Groups, settings and small values as they were when the engine was opened.
    fn restored(&self) -> RestoredState;

    /// Appends a batch. Never waits. Outcomes are added to `outcomes` now, or come with the commit
    /// ([`Appended::late`]). The batch is durable and its events are visible when the commit is reported. A commit of which
    /// nothing was stored (its outcomes are an error) must never be reported, nor may [`durable_commit`](Self::durable_commit)
    /// reach it: its group records would count as durable.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was appended. After [`StoreError::Busy`] the observer is told when to try again.
    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Published>) -> Result<Appended, StoreError>;

    /// The newest durable commit.
    fn durable_commit(&self) -> u64;

    /// Which commit times are over. `closing` closes the time that it names, even if the clock is behind it. The observer has
    /// been told of everything that is complete; while it is being told, `complete_ms` may be `i64::MIN`.
    fn commit_times(&self, closing: i64) -> CommitTimes;

    /// Waits until an append that was refused with [`StoreError::Busy`] may be tried again. False if there will never be room.
    fn wait_for_room(&self, may_block: MayBlock) -> bool;

    /// The number of a topic, which is created if it does not exist. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: no topic was created.
    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError>;

    /// Deletes a topic with all its events; durable with the commit that this returns. A topic that is created later under the
    /// same name is another one. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was deleted.
    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError>;

    /// Retention: topics begin at these seqs from now on; nothing below is read or counted. First seqs only rise. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: nothing changed.
    fn retain_from(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError>;

    /// The seq that retention left a topic to begin at; zero if it removed nothing.
    fn retained_from(&self, topic: TopicId) -> u64;

    /// All topics.
    fn topics(&self) -> Vec<StoredTopic>;

    /// The newest durable seq of a topic; zero for none.
    fn last_seq(&self, topic: TopicId) -> u64;

    /// A seq that events which were appended before this call do not exceed, and later ones do. An engine that learns seqs with the
    /// commit waits for what is queued.
    fn appended_seq(&self, topic: TopicId) -> Lookup<u64>;

    /// Whether the engine made this id. Such ids rise with the seqs of a topic, so one whose event is gone still has its place.
    fn is_own_id(&self, id: EventId) -> bool;

    /// A scanner to read events with.
    fn scanner(&self) -> Box<dyn EventScanner>;

    /// The oldest kept seq of a topic.
    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>>;

    /// The first kept event at or after a seq.
    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>>;

    /// The seq of the event with this id.
    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>>;

    /// The first seq whose event has this `ts` or a later one, even if publishers' times are out of order.
    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>>;

    /// For each seq and key: whether an event of the topic with this key and a lower seq is kept.
    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>>;

    /// The lowest seq such that the events from it on take at most about this many bytes.
    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64>;

    /// What these topics take, at a cost that does not grow with the number of other topics. `None` for one that does not exist
    /// or is not durable yet.
    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>>;

    /// Removes dead events: those below the first seqs of their topics, those of deleted topics, and with `compact` those that
    /// `liveness` calls dead. One thread does this.
    ///
    /// # Errors
    /// [`Unavailable`] when writing stopped.
    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable>;

    /// Whether the storage is full: publishes are refused now or soon.
    fn is_full(&self) -> bool {
        false
    }

    /// Figures for operators.
    fn figures(&self) -> StoreFigures;

    /// Backups and unreadable events, for engines that keep files on this machine.
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        None
    }

    /// How a durable engine without local files is backed up: a sentence with the command to use.
    fn backup_hint(&self) -> Option<String> {
        None
    }

    /// Makes what is pending durable, and ends.
    ///
    /// # Errors
    /// [`Unavailable`] when writing had stopped before.
    fn close(&self, may_block: MayBlock) -> Result<(), Unavailable>;
}

/// Events that cannot be read now.
pub use prombus_log::UnreadableEvents;

/// What only an engine with files on this machine can do.
pub trait LocalFiles {
    /// Copies everything that is durable now to a new folder, while the bus runs. `progress` is told the bytes done and the
    /// bytes in all.
    ///
    /// # Errors
    /// [`BackupError`]: the folder contains nothing that could be taken for a backup.
    fn backup(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
        may_block: MayBlock,
    ) -> Result<(), BackupError>;

    /// Tries to read the known unreadable ranges again, so that figures and lists are current.
    fn probe_unreadable(&self, may_block: MayBlock);

    /// Events that readers have failed to read and that are still unreadable.
    fn unreadable(&self, may_block: MayBlock) -> Vec<UnreadableEvents>;

    /// Marks the unreadable events as damaged and returns them.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was marked.
    fn accept_losses(&self, may_block: MayBlock) -> Result<Vec<UnreadableEvents>, StoreError>;
}
