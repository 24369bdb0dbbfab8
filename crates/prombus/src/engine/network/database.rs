//! What a database must do to be the store of a [`NetworkEngine`](super::NetworkEngine).

use super::change::CommitAnswer;
use super::pending_commit::PendingCommit;
use super::piece::{FetchLimit, Piece, ReadableSeqs};
use crate::engine::{EventHead, EventId, NewEvent, TopicId, TopicUsage};
use crate::error::{ReadError, Unavailable};
use tokio::sync::watch;

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

/// A database on a network that keeps events and records.
///
/// **Reads** wait while the database is away, and are repeated when it returns. An error means that waiting does not help. They
/// return only what a failover cannot take back.
///
/// **Commits** come one at a time. A commit that is sent again after [`CommitError::Unreachable`] is applied once.
pub trait RemoteDatabase: Send + Sync + 'static {
    /// Why the database cannot be used now; `None` while it can.
    fn availability(&self) -> watch::Receiver<Option<String>>;

    /// Encodes as much of an event as can be known before its commit. Called by the threads that append.
    fn prepare(&self, _event: &NewEvent<'_>) -> Box<[u8]> {
        Box::default()
    }

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
