//! What a database must do to be the store of a [`NetworkEngine`](super::NetworkEngine).

use super::leader::PendingCommit;
use crate::engine::outcomes::Published;
use crate::engine::{EventHead, EventId, StateRecord, StoredEvent, TopicId, TopicUsage};
use crate::error::{ReadError, Unavailable};
use prombus_protocol::Topic;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// What an event takes in the queue besides its key and its body.
const EVENT_BYTES: usize = 64;

/// An event on its way to a database. The database decides its seq.
#[derive(Clone, Debug)]
pub struct EventDocument {
    /// Its topic.
    pub topic: TopicId,
    /// Its id, chosen by the publisher or made by the engine.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// When the engine took it; never falls.
    pub commit_ms: i64,
    /// Its key.
    pub key: Option<Box<[u8]>>,
    /// Everything else, as [`prombus_protocol::Body`] reads it.
    pub body: Box<[u8]>,
    /// Whether it deletes its key in a compacted topic.
    pub is_tombstone: bool,
    /// Whether the publisher chose the id.
    pub is_client_id: bool,
}

impl EventDocument {
    /// What it takes in memory, and about what it takes in the database.
    pub fn bytes(&self) -> usize {
        Self::bytes_of(self.key.as_deref(), &self.body)
    }

    /// What an event with this key and body takes.
    pub fn bytes_of(key: Option<&[u8]>, body: &[u8]) -> usize {
        EVENT_BYTES + key.map_or(0, <[u8]>::len) + body.len()
    }

    /// The event at a seq, as readers see it.
    pub fn at(&self, seq: u64) -> StoredEvent<'_> {
        StoredEvent {
            seq,
            id: self.id,
            ts: self.ts,
            commit_ms: self.commit_ms,
            key: self.key.as_deref(),
            body: &self.body,
            tombstone: self.is_tombstone,
            client_id: self.is_client_id,
        }
    }
}

/// One step of a commit. The steps of a commit become durable together.
#[derive(Debug)]
pub enum Change {
    /// A topic is created.
    TopicMade {
        /// Its number, which was never used before.
        topic: TopicId,
        /// Its name.
        name: Topic,
    },
    /// Events, then records.
    Batch {
        /// The events, in order.
        events: Vec<Arc<EventDocument>>,
        /// The records, in order.
        records: Vec<EncodedRecord>,
    },
    /// A topic is deleted with all its events.
    TopicDeleted {
        /// Its number.
        topic: TopicId,
        /// What the fold over the records must learn of it.
        record: EncodedRecord,
    },
}

/// A state record as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRecord {
    /// Its kind.
    pub tag: u32,
    /// Its content.
    pub body: Vec<u8>,
}

impl From<&StateRecord> for EncodedRecord {
    fn from(record: &StateRecord) -> Self {
        let mut body = Vec::new();
        record.put(&mut body);
        Self { tag: record.tag(), body }
    }
}

/// What the database answers to a commit.
#[derive(Clone, Debug, Default)]
pub struct CommitAnswer {
    /// One list per [`Change::Batch`], in order.
    pub outcomes: Vec<Vec<Published>>,
    /// The newest seqs of topics that got events.
    pub newest: BTreeMap<TopicId, u64>,
}

/// Why a commit was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// Whether it was applied is unknown. It is sent again when the database is available; the database recognises it.
    Unreachable(String),
    /// A newer term has written its fence. The text names its leader, as far as it is known.
    Deposed(String),
    /// The database refuses to write, for a reason that only an operator can remove.
    Stopped(Unavailable),
}

/// Which seqs of a topic may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadableSeqs {
    /// What is below was removed by retention, though the database may still have it.
    pub first_seq: u64,
    /// The newest durable seq.
    pub last_seq: u64,
}

/// How much a fetch takes. It takes one event at least.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimit {
    /// No event above this seq.
    pub last_seq: u64,
    /// The most events.
    pub events: usize,
    /// About the most bytes.
    pub bytes: usize,
}

/// Events that were fetched.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// The first seq that was asked for.
    pub first_seq: u64,
    /// What is not in the piece up to this seq is not in the topic.
    pub last_seq: u64,
    /// Seqs and events, in order.
    pub events: VecDeque<(u64, Arc<EventDocument>)>,
    /// Stored events that could not be understood; they are left out.
    pub corrupt: u64,
}

/// A database on a network that keeps events and records.
///
/// **Reads** wait while the database is away, and are repeated when it returns. An error means that waiting does not help. They
/// return only what a failover cannot take back.
///
/// **Commits** come one at a time. A commit that is sent again after [`CommitError::Unreachable`] is applied once.
pub trait RemoteDatabase: Send + Sync + 'static {
    /// Why the database cannot be used now; `None` while it can.
    fn availability(&self) -> watch::Receiver<Option<String>>;

    /// Makes a commit durable.
    fn commit(
        &self,
        commit: &PendingCommit,
    ) -> impl Future<Output = Result<CommitAnswer, CommitError>> + Send;

    /// Reads events of a topic from a seq on.
    fn fetch(
        &self,
        topic: TopicId,
        first_seq: u64,
        limit: FetchLimit,
    ) -> impl Future<Output = Result<Piece, ReadError>> + Send;

    /// The first kept event with one of these seqs.
    fn head_in(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<EventHead>, ReadError>> + Send;

    /// The seq of the event with this id, also if it was cleaned and its id is still known.
    fn find(
        &self,
        topic: TopicId,
        id: EventId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<u64>, ReadError>> + Send;

    /// The first seq whose event has this `ts` or a later one.
    fn first_at_or_after(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<u64>, ReadError>> + Send;

    /// For each seq and key: whether an event with this key and a lower seq is kept.
    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Vec<Result<bool, ReadError>>, ReadError>> + Send;

    /// The lowest seq such that the events from it on take at most about this many bytes.
    fn first_within_bytes(
        &self,
        topic: TopicId,
        bytes: u64,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<u64, ReadError>> + Send;

    /// What a topic takes; `None` for one that is not durable yet.
    fn usage(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<TopicUsage>, ReadError>> + Send;

    /// Seqs of kept events from a seq on, in order, at most `limit`.
    fn seqs(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<u64>, ReadError>> + Send;

    /// Removes events. Ids that publishers chose stay known for a while.
    fn remove(&self, dead: DeadEvents) -> impl Future<Output = Result<Removed, RemoveError>> + Send;

    /// The bytes of everything that is stored, as far as it is known.
    fn bytes(&self) -> u64;

    /// The command with which operators make a backup.
    fn backup_hint(&self) -> Option<String> {
        None
    }

    /// The engine has ended: nothing is called any more.
    fn closed(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Events to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadEvents {
    /// Those of a topic below a seq.
    Below(TopicId, u64),
    /// Those of a topic with these seqs.
    Seqs(TopicId, Vec<u64>),
    /// All that is left of deleted topics, with their ids.
    DeletedTopics,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Events.
    pub events: u64,
    /// The bytes they took.
    pub bytes: u64,
}

/// Why nothing more was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoveError {
    /// The database is away, or refused: try again later.
    Later(String),
    /// Another process leads.
    Deposed(String),
}
