//! Queries for the newest event of each key, and their results.

use crate::batch::{EventBatch, PullLimit};
use prombus_protocol::Uuid;

/// Which keys of a topic a query is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// All that are not deleted.
    #[default]
    All,
    /// These, as far as they are there.
    These(Vec<String>),
}

/// A query for the newest events by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestQuery {
    /// Which keys.
    pub keys: Keys,
    /// As of this time, by the events' `ts`, from what is kept; else as of now.
    pub at_ts: Option<i64>,
    /// Only events after this seq, to continue where a page ended.
    pub after_seq: u64,
    /// Only events up to this seq: the position of the first page, for the pages after it. Keys that have newer events are left
    /// out; a consumer that reads the topic after the position gets those.
    pub to_seq: Option<u64>,
    /// Whether to return the tombstones of deleted keys, too.
    pub with_deleted: bool,
    /// The most that one page returns.
    pub limit: PullLimit,
}

/// A place in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// The id of the event there.
    pub id: Uuid,
    /// Its seq.
    pub seq: u64,
}

/// The newest events of keys, in the order of their seqs.
#[derive(Clone, Debug, Default)]
pub struct LatestPage {
    /// The events.
    pub events: EventBatch,
    /// The newest event that the result takes into account. `None` when the topic never had one.
    pub position: Option<EventPosition>,
    /// How many keys the topic has that are not deleted.
    pub key_count: u64,
    /// The seq after which the next page starts; `None` on the last page.
    pub next_after: Option<u64>,
}
