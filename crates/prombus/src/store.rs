//! Where events and group records live. A [`Store`] keeps both, because they must become durable together; groups, leases and
//! redelivery are not its business but [`LocalBackend`](crate::LocalBackend)'s, which works over any store.

mod commit_watch;
mod groups;
mod log;
mod memory;
mod state_record;

pub use commit_watch::CommitWatch;
pub use groups::{GroupState, TopicProgress};
pub(crate) use log::is_store_thread;
pub use log::{LogStore, LogStoreOptions};
pub use memory::MemoryStore;
pub use prombus_log::{
    CleanOptions, CleanReport, CommitTimes, Event as StoredEvent, EventId, LiveCount, Liveness, NewEvent,
    Outcome, ReadLimit, TopicId, TopicUsage, UnreadableEvents,
};
pub use state_record::{GroupAttempts, GroupProgress, StateRecord};

use crate::error::{BackupError, ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use prombus_protocol::Topic;
use std::path::Path;
use std::sync::Arc;

/// What is appended as one: all of it becomes durable, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppendBatch<'a> {
    /// Events, in order.
    pub events: &'a [NewEvent<'a>],
    /// Group records, in order.
    pub records: &'a [StateRecord],
    /// Whether it may use the room that is kept free on a full disk.
    pub use_reserve: bool,
}

/// A topic of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTopic {
    /// Its number in the store.
    pub id: TopicId,
    /// Its name.
    pub name: Topic,
    /// The newest durable seq; zero for none.
    pub last_seq: u64,
}

/// What a scan came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The first seq that was not looked at.
    pub next_seq: u64,
    /// Seqs in between that retention, compaction or deletion took.
    pub cleaned: u64,
    /// Seqs in between that are damaged.
    pub corrupt: u64,
}

/// What there is to know of an event without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHead {
    /// Its seq.
    pub seq: u64,
    /// Its id.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// When the store took it; never falls.
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

/// What a visitor of a scan says after each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The event is taken; on to the next.
    Next,
    /// The event is not taken; the scan ends before it.
    Stop,
}

/// Reads events. Keeps what it read ahead, so one is kept for each reader.
pub trait Scanner: Send {
    /// Shows the durable events `from..=to` of a topic, in order, to `visit`, until it says stop or there are no more at hand. It
    /// may end before `to` for reasons of its own, but makes progress when there is something to read.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read; damaged events are no error but left out and counted.
    fn scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Result<Scanned, ReadError>;

    /// How many bytes to read ahead at most, for those who read little at a time.
    fn read_ahead(&mut self, _bytes: usize) {}

    /// Lets go of what was read ahead.
    fn rest(&mut self);
}

/// Hears from a store. Calls may come from a thread of the store, one at a time, and must return soon.
pub trait StoreObserver: Send + Sync + 'static {
    /// A batch is durable, with these topics' newest seqs.
    fn committed(&self, batch: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>);

    /// Appends that were answered [`StoreError::Busy`] may be tried again.
    fn room(&self);

    /// Writing stopped for good.
    fn unavailable(&self, reason: Unavailable);
}

/// Keeps events and group records. Nothing in it waits: what takes time is told to the observer.
pub trait Store: Send + Sync + 'static {
    /// Who is told about commits. Called once, before anything is appended.
    fn observe(&self, observer: Arc<dyn StoreObserver>);

    /// Appends a batch: its events get their ids and seqs now, into `outcomes`. It is durable, and its events visible, when the
    /// batch whose number this answers is.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was appended. After [`StoreError::Busy`] the observer is told when to try again.
    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Outcome>) -> Result<u64, StoreError>;

    /// The newest durable batch.
    fn durable_batch(&self) -> u64;

    /// Which commit times are over. `closing` closes the time that it names, also where the clock is behind it: that is for the
    /// time of an event that is there, or of now. Of everything that is complete, the observer has been told; while it is being
    /// told, `complete_ms` may be the lowest time there is.
    fn commit_times(&self, closing: i64) -> CommitTimes;

    /// The id of a topic, which is made if it is not there.
    ///
    /// # Errors
    /// [`StoreError`]: no topic was made.
    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError>;

    /// All topics.
    fn topics(&self) -> Vec<StoredTopic>;

    /// The newest durable seq of a topic; zero for none.
    fn last_seq(&self, topic: TopicId) -> u64;

    /// The newest seq that a topic has given out, durable or not.
    fn appended_seq(&self, topic: TopicId) -> u64;

    /// The oldest kept seq of a topic.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError>;

    /// The first kept event at or past a seq.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError>;

    /// Something to read with.
    fn scanner(&self) -> Box<dyn Scanner>;

    /// The seq of the event with this id.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn find(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError>;

    /// The first seq whose event has this `ts` or a later one, also when publishers' times are out of order.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError>;

    /// Whether the store made this id itself. Such ids rise with the seqs of a topic, so one whose event is gone still has its
    /// place.
    fn is_own_id(&self, id: EventId) -> bool;

    /// Whether an event of a topic with this key and a lower seq is kept anywhere.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError>;

    /// [`has_key_before`](Self::has_key_before) for several keys, in their order.
    fn have_keys_before(&self, topic: TopicId, keys: &[(u64, Vec<u8>)]) -> Vec<Result<bool, ReadError>> {
        keys.iter().map(|(seq, key)| self.has_key_before(topic, key, *seq)).collect()
    }

    /// Has topics begin at these seqs: nothing below them is read or counted from now on. First seqs only rise.
    ///
    /// # Errors
    /// [`StoreError`]: nothing changed.
    fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError>;

    /// The seq that a topic was cut at; zero when it was not.
    fn cut_at(&self, topic: TopicId) -> u64;

    /// The lowest seq such that what is kept from it on takes at most about so many bytes.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError>;

    /// What topics take.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn usage(&self) -> Result<Vec<TopicUsage>, ReadError>;

    /// What these topics take, at a cost that does not grow with the number of topics; `None` for one that is not there, or not
    /// durable yet.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError>;

    /// Deletes a topic with all its events. It is gone for good when the batch whose number this answers is durable. A topic
    /// made later under the same name is another one. Does not wait.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was deleted. [`StoreError::Busy`]: there may be room later, as for an append.
    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError>;

    /// Gives back the room of what is dead. It takes its time; one thread does it.
    ///
    /// # Errors
    /// [`Unavailable`] when writing stopped.
    fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable>;

    /// How many bytes of dead events are worth a cleaning.
    fn worth_cleaning_bytes(&self) -> u64;

    /// What was set about topics when the store was opened, as JSON, by name.
    fn topic_settings(&self) -> Vec<(String, String)>;

    /// The small values that were kept when the store was opened, by name.
    fn kept(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }

    /// Copies what is durable now to a new folder, while everything goes on. `progress` hears how many bytes of how many are
    /// done. It takes its time.
    ///
    /// # Errors
    /// [`BackupError`]: there is nothing in the folder that could be taken for a backup.
    fn backup(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), BackupError>;

    /// Whether what it keeps survives a restart.
    fn is_durable(&self) -> bool;

    /// The groups as they were when the store was opened.
    fn groups(&self) -> Vec<GroupState>;

    /// Waits until an append that was answered [`StoreError::Busy`] may be tried again, on a thread that can wait. False when
    /// it will never have room.
    fn wait_for_room(&self) -> bool;

    /// Whether no further segment can be made: publishes are refused now or soon.
    fn is_full(&self) -> bool {
        false
    }

    /// Figures for operators.
    fn figures(&self) -> StoreFigures;

    /// Retries the known unreadable ranges, so that figures and lists are current. May block for long.
    fn probe_unreadable(&self) {}

    /// Events that readers have failed to read and that are still unreadable. May block for long.
    fn unreadable(&self) -> Vec<UnreadableEvents> {
        Vec::new()
    }

    /// Marks the unreadable events as damaged and returns them.
    ///
    /// # Errors
    /// [`StoreError`]: nothing was marked.
    fn accept_losses(&self) -> Result<Vec<UnreadableEvents>, StoreError> {
        Ok(Vec::new())
    }

    /// Makes what is pending durable, and ends.
    ///
    /// # Errors
    /// [`Unavailable`] when writing had stopped before.
    fn close(&self) -> Result<(), Unavailable>;
}
