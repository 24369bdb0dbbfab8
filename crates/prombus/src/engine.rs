//! The interface between the bus and its storage. An [`Engine`] stores events, and records of the state of groups and topics
//! ([`StateRecord`]). [`LocalBackend`](crate::LocalBackend) runs over any engine and adds groups, leases and redelivery.
//!
//! An engine may be a log in this process or a database on the network, so the interface shows where a call may wait:
//!
//! - [`EventScanner::poll_scan`] may be pending; a local engine is always ready.
//! - Lookups of single events and topics return a [`Lookup`], which may be pending as well.
//! - [`Engine::append`] returns a commit number at once. The ids and seqs of the events are known at once, or when the commit
//!   completes ([`LateOutcomes`]).
//! - A call that may block its thread takes a [`MayBlock`], the proof that the thread may be blocked.
//! - An engine can become unavailable and recover: see [`EngineObserver`].
//!
//! **Atomicity:** a batch consists of events, followed by records. Records never become durable without the events of their
//! batch. Batches become durable in the order of their commit numbers; several batches may share a commit. Events are *dead* when
//! retention, compaction or a deletion has made them obsolete; a *cleaning* removes them from the storage.

mod closed_letters;
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

pub use closed_letters::ClosedLetters;
pub use log::{LogEngine, LogEngineOptions};
pub use lookup::Lookup;
pub use may_block::MayBlock;
pub(crate) use may_block::off_async_threads;
pub use outcomes::{Appended, LateOutcomes, Published};
pub use prombus_log::{CommitTimes, Event as StoredEvent, EventId, LiveCount, Liveness, NewEvent, TopicId};
pub use shared_store::{LeaseError, LeaseRecord, LeaseStore, SharedStore, Takeover};
pub use state_fold::{GroupFloors, GroupState, RestoredState, StateFold, TopicProgress};
pub use state_record::{ADDRESSEE_FEATURE, GroupAttempts, GroupProgress, LetterClosing, StateRecord};

use crate::error::{BackupError, ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use prombus_protocol::Topic;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The capabilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCapabilities {
    /// An event that was reported as committed survives a restart.
    pub is_durable: bool,
    /// [`Engine::local_files`] returns [`LocalFiles`], for backups and for a list of unreadable events.
    pub has_local_files: bool,
    /// Scans and lookups are never pending. They read local files on the calling thread, at most a megabyte per call.
    pub reads_locally: bool,
    /// Compaction starts before its regular time only if there are at least this many dead bytes, and at least as many dead bytes
    /// as live bytes.
    pub compaction_bytes_min: u64,
}

/// A batch to append. Either all of it becomes durable or none of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendBatch<'a> {
    /// The events, in order.
    pub events: &'a [NewEvent<'a>],
    /// The records, in order. They are applied after the events.
    pub records: &'a [StateRecord],
    /// Whether the batch may use the reserve: disk space that is kept for records when the disk is full.
    pub use_reserve: bool,
}

impl<'a> AppendBatch<'a> {
    /// A batch of records only. It may use the reserve.
    pub fn of_records(records: &'a [StateRecord]) -> Self {
        Self { records, use_reserve: true, events: &[] }
    }
}

/// A topic of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTopic {
    /// Its number. Numbers are never reused.
    pub id: TopicId,
    /// Its name.
    pub name: Topic,
    /// The newest durable seq; zero if the topic has no events.
    pub last_seq: u64,
}

/// The storage that a topic uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicUsage {
    /// The number of stored events, including dead ones that are not cleaned yet.
    pub events: u64,
    /// The size of these events.
    pub bytes: u64,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The first seq that the scan did not visit.
    pub next_seq: u64,
    /// The number of seqs in the scanned range whose events retention, compaction or a deletion removed.
    pub cleaned: u64,
    /// The number of seqs in the scanned range whose events are damaged.
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
    /// When the engine committed it. Within a topic commit times never decrease.
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

/// The decision of a scan's callback about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The event was taken. The scan continues with the next one.
    Next,
    /// The event was not taken. The scan ends before it.
    Stop,
}

/// Reads events in order. A scanner keeps events that it has read ahead, so each reader has its own scanner.
pub trait EventScanner: Send {
    /// Passes the durable events `from..=to` of a topic to `visit`, in order, until `visit` returns [`Visit::Stop`] or no more
    /// events are available. A scan may end before `to`, but it makes progress when there is something to read.
    ///
    /// If this is pending, no event was passed to `visit`. The task is woken when the same scan can make progress; the scanner
    /// keeps the events that were fetched for it until then, even if it does other scans in between. Only the waker of the latest
    /// pending call is kept.
    ///
    /// # Errors
    /// [`ReadError`] if the events cannot be read at the moment. Damaged events are not an error: they are left out, and counted
    /// in [`Scanned::corrupt`].
    fn poll_scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        context: &mut Context<'_>,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Poll<Result<Scanned, ReadError>>;

    /// Whether the events of a topic from this seq on are in memory. If so, a scan of them takes microseconds and may run on any
    /// thread.
    fn is_in_memory(&self, _topic: TopicId, _from: u64) -> bool {
        false
    }

    /// Limits the size of the read-ahead.
    fn read_ahead(&mut self, _bytes: usize) {}

    /// Tells the scanner that the reader will take at most this many more events and bytes, so that it need not fetch more.
    fn expect(&mut self, _events: usize, _bytes: usize) {}

    /// Frees the memory of events that were read ahead.
    fn rest(&mut self);
}

/// Receives reports of an engine. The engine makes one call at a time, possibly on one of its own threads. Each call must return
/// soon.
pub trait EngineObserver: Send + Sync + 'static {
    /// Reports that all batches up to this commit are durable. `newest` contains the newest seq of each topic that received
    /// events. The engine has filled the [`LateOutcomes`] of these batches before this call.
    fn committed(&self, commit: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>);

    /// Reports that appends which were refused with [`StoreError::Busy`] may be retried.
    fn room(&self);

    /// Reports that the engine cannot commit at the moment and keeps trying. Until it resumes, it refuses appends with
    /// [`StoreError::Busy`].
    fn suspended(&self, reason: String);

    /// Reports that the engine commits again. A call of `room` follows. Until this call returns, the engine refuses appends with
    /// [`StoreError::Busy`].
    fn resumed(&self);

    /// Reports that the engine was deposed: this process no longer leads the store, and the engine commits nothing more. `leader`
    /// names the new leader, if it is known, or the reason.
    fn deposed(&self, leader: String);

    /// Reports that the engine has permanently stopped writing.
    fn stopped(&self, reason: Unavailable);
}

/// The result of a cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// The number of removed events.
    pub events: u64,
    /// The size of the removed events.
    pub bytes: u64,
    /// Whether some dead events could not be removed, because a disk is full or unreadable, or a database is unreachable.
    pub is_cut_short: bool,
}

/// Stores events and group records.
pub trait Engine: Send + Sync + 'static {
    /// The capabilities of this engine.
    fn capabilities(&self) -> EngineCapabilities;

    /// Sets the observer. Must be called exactly one time, before the first append.
    fn observe(&self, observer: Arc<dyn EngineObserver>);

    /// Groups, topic settings and named values ([`StateRecord::Kept`]) as they were when the engine was opened.
    fn restored(&self) -> RestoredState;

    /// Appends a batch, without waiting. The outcomes of its events are added to `outcomes` at once, or become known with the
    /// commit ([`Appended::late`]). When the commit is reported to the observer, the batch is durable and its events are visible.
    ///
    /// If the late outcomes of a batch are an error, nothing of it was stored. Its commit must then never be reported, and
    /// [`durable_commit`](Self::durable_commit) must never reach it: otherwise the records of the batch would count as durable.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was appended. After [`StoreError::Busy`] the engine tells the observer when to retry.
    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Published>) -> Result<Appended, StoreError>;

    /// The newest durable commit.
    fn durable_commit(&self) -> u64;

    /// Closes the commit time `closing` and all earlier ones, even if the clock has not reached them yet: no later append gets
    /// such a time. Returns the times that are closed and complete. `complete_ms` covers only commits that were reported to the
    /// observer. It may be `i64::MIN` while a report is in progress.
    fn commit_times(&self, closing: i64) -> CommitTimes;

    /// Waits until an append that was refused with [`StoreError::Busy`] may be retried. Returns false if there will never be
    /// room.
    fn wait_for_room(&self, may_block: MayBlock) -> bool;

    /// Returns the number of a topic, which is created if it does not exist. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: no topic was created.
    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError>;

    /// Deletes a topic with all its events. The deletion is durable when the returned commit is. A topic that is created later
    /// under the same name is a new topic. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was deleted.
    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError>;

    /// Applies retention: from now on these topics begin at these seqs, and earlier events are neither read nor counted. The
    /// first seq of a topic never decreases. Never waits.
    ///
    /// # Errors
    /// [`StoreError`]: nothing changed.
    fn retain_from(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError>;

    /// The first seq that retention left in a topic; zero if retention removed nothing.
    fn retained_from(&self, topic: TopicId) -> u64;

    /// All topics.
    fn topics(&self) -> Vec<StoredTopic>;

    /// The newest durable seq of a topic; zero if it has no events.
    fn last_seq(&self, topic: TopicId) -> u64;

    /// The newest seq of a topic including events that are appended but not durable yet. Events that are appended after this call
    /// get higher seqs. If the engine learns seqs only with the commit, the lookup waits for the queued appends.
    fn appended_seq(&self, topic: TopicId) -> Lookup<u64>;

    /// Whether the engine generated this id. Within a topic, such ids rise with the seqs, so the place of an id in the topic can
    /// be found even after its event was removed.
    fn is_own_id(&self, id: EventId) -> bool;

    /// A new scanner.
    fn scanner(&self) -> Box<dyn EventScanner>;

    /// The seq of the oldest kept event of a topic; `None` if it has no events.
    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>>;

    /// The first kept event with this seq or a higher one.
    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>>;

    /// The seq of the event with this id; `None` if the topic does not have the id.
    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>>;

    /// The lowest seq whose event has this `ts` or a later one. The `ts` of events need not be in order.
    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>>;

    /// For each seq and key: whether the topic still has an event with this key and a lower seq.
    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>>;

    /// The lowest seq such that the events from it on take at most about this many bytes.
    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64>;

    /// The storage that each of these topics uses. The cost does not depend on the number of other topics. The entry of a topic
    /// that does not exist, or is not durable yet, is `None`.
    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>>;

    /// Removes dead events: those below the first seqs of their topics, those of deleted topics and, if `compact` is true, those
    /// that `liveness` reports as dead. Only one thread calls this.
    ///
    /// # Errors
    /// [`Unavailable`] when the engine has stopped writing.
    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable>;

    /// Whether the storage is full, so that publishes are refused or soon will be.
    fn is_full(&self) -> bool {
        false
    }

    /// Figures for operators.
    fn figures(&self) -> StoreFigures;

    /// Operations that need local files; `None` if the engine does not keep files on this machine.
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        None
    }

    /// How a durable engine without local files is backed up: a sentence with the command to use.
    fn backup_hint(&self) -> Option<String> {
        None
    }

    /// Makes pending appends durable and ends the engine.
    ///
    /// # Errors
    /// [`Unavailable`] when the engine had already stopped writing.
    fn close(&self, may_block: MayBlock) -> Result<(), Unavailable>;
}

/// Events of a topic that cannot be read at the moment.
pub use prombus_log::UnreadableEvents;

/// Operations that need files on this machine.
pub trait LocalFiles {
    /// Copies everything that is durable at this time to a new folder, while the bus runs. `progress` receives the bytes copied
    /// and the bytes in total.
    ///
    /// # Errors
    /// [`BackupError`]. After an error, the folder contains nothing that could be mistaken for a backup.
    fn backup(
        &self,
        folder: &Path,
        progress: &mut dyn FnMut(u64, u64),
        may_block: MayBlock,
    ) -> Result<(), BackupError>;

    /// Tries to read the known unreadable ranges again, to update figures and lists.
    fn probe_unreadable(&self, may_block: MayBlock);

    /// The events that could not be read when a reader needed them, and that are still unreadable.
    fn unreadable(&self, may_block: MayBlock) -> Vec<UnreadableEvents>;

    /// Marks the unreadable events as damaged and returns them.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was marked.
    fn accept_losses(&self, may_block: MayBlock) -> Result<Vec<UnreadableEvents>, StoreError>;
}
