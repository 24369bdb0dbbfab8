//! Queries for the newest event of each key, and their results.

use crate::batch::{EventBatch, PullLimit};
use prombus_protocol::Uuid;

/// Which keys of a topic a query is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// All keys of the topic.
    #[default]
    All,
    /// These keys. Keys that the topic does not have, or that are deleted, are left out.
    These(Vec<String>),
}

/// A query for the newest events by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestQuery {
    /// The keys to return.
    pub keys: Keys,
    /// Ignores events with a later `ts`, and so returns the state at this time, as far as its events are still stored. `None`
    /// returns the current state.
    pub at_ts: Option<i64>,
    /// Returns only events after this seq. For the second and later pages, set it to `next_after` of the previous page.
    pub after_seq: u64,
    /// Returns only events up to this seq. For the second and later pages, set it to the seq of the first page's position. Keys that
    /// have newer events are left out; a consumer that reads the topic after that position receives those events.
    pub to_seq: Option<u64>,
    /// With [`Keys::All`]: whether to return deleted keys as well, with the tombstone (the event that deleted the key) as their
    /// newest event.
    pub with_deleted: bool,
    /// The limits of one page.
    pub limit: PullLimit,
}

/// A position in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// The id of the event at the position.
    pub id: Uuid,
    /// Its seq.
    pub seq: u64,
}

/// The newest events of keys, in seq order.
#[derive(Clone, Debug, Default)]
pub struct LatestPage {
    /// The events.
    pub events: EventBatch,
    /// The newest event that the result covers. `None` if it covers no event.
    pub position: Option<EventPosition>,
    /// The number of keys of the topic that are not deleted.
    pub key_count: u64,
    /// The seq after which the next page starts; `None` on the last page.
    pub next_after: Option<u64>,
}
