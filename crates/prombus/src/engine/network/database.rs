//! The interface that a database must provide to be the store of a [`NetworkEngine`](super::NetworkEngine).

use super::change::CommitAnswer;
use super::pending_commit::PendingCommit;
use super::piece::{FetchLimit, Piece, ReadableSeqs};
use crate::engine::{EventHead, EventId, NewEvent, TopicId, TopicUsage};
use crate::error::{ReadError, Unavailable};
use tokio::sync::watch;

/// Why a commit failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// Whether the commit was applied is unknown. The engine sends it again when the database is available, and the database
    /// recognises a commit that was applied.
    Unreachable(String),
    /// This process no longer leads: a later term has written to the store, or the last commit was lost in a failover. The text
    /// names the new leader, if it is known, or the reason.
    Deposed(String),
    /// The database refuses to write, and only an operator can remove the cause.
    Stopped(Unavailable),
}

/// A database on a network that stores events and records.
///
/// **Reads** wait while the database is unreachable and are repeated when it is back. An error means that waiting longer would
/// not help. Reads return only data that a failover cannot undo.
///
/// **Commits** are sent one at a time. If a commit is sent again after [`CommitError::Unreachable`], it must not be applied a
/// second time.
pub trait RemoteDatabase: Send + Sync + 'static {
    /// Why the database cannot be used at the moment; `None` while it can.
    fn availability(&self) -> watch::Receiver<Option<String>>;

    /// Encodes the parts of an event that are known before its commit. Called on the threads that append.
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

    /// The first kept event within `seqs`; `None` if there is none.
    fn head_in(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<EventHead>, ReadError>> + Send;

    /// The seq of the event with this id; `None` if the id is unknown. An id may be known even after its event was removed.
    fn find(
        &self,
        topic: TopicId,
        id: EventId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<u64>, ReadError>> + Send;

    /// The lowest seq whose event has this `ts` or a later one.
    fn first_at_or_after(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<u64>, ReadError>> + Send;

    /// For each seq and key: whether the topic still has an event with this key and a lower seq.
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

    /// The storage that a topic uses; `None` if the topic is not durable yet.
    fn usage(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
    ) -> impl Future<Output = Result<Option<TopicUsage>, ReadError>> + Send;

    /// The seqs of the first `limit` kept events within `seqs`, in order.
    fn seqs(
        &self,
        topic: TopicId,
        seqs: ReadableSeqs,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<u64>, ReadError>> + Send;

    /// Removes events. Ids that publishers chose stay known for the deduplication period, so that their events are recognised as
    /// duplicates.
    fn remove(&self, dead: DeadEvents) -> impl Future<Output = Result<Removed, RemoveError>> + Send;

    /// The size of all stored data in bytes, as far as it is known.
    fn bytes(&self) -> u64;

    /// A sentence with the command that makes a backup.
    fn backup_hint(&self) -> Option<String> {
        None
    }

    /// Called when the engine has ended. No other call follows.
    fn closed(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Events to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadEvents {
    /// The events of a topic below a seq.
    Below(TopicId, u64),
    /// The events of a topic with these seqs.
    Seqs(TopicId, Vec<u64>),
    /// All remaining events and ids of deleted topics.
    DeletedTopics,
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of removed events.
    pub events: u64,
    /// The size of the removed events.
    pub bytes: u64,
}

/// Why a removal ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoveError {
    /// The database is unreachable, or refused the removal: try again later.
    Later(String),
    /// Another process leads the store.
    Deposed(String),
}
