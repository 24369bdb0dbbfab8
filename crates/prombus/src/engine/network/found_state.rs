//! The state that a new leader starts with.

use crate::engine::{EventId, RestoredState, TopicId};
use prombus_protocol::Topic;

/// The state that a new leader found in the database after it wrote its fence.
#[derive(Clone, Debug, Default)]
pub struct FoundState {
    /// The number of the newest commit.
    pub commit: u64,
    /// The highest topic number that was ever used.
    pub topic_number: u32,
    /// The numbers, names and newest seqs of the topics.
    pub topics: Vec<(TopicId, Topic, u64)>,
    /// For topics from which retention removed events: the first seq that is still served.
    pub firsts: Vec<(TopicId, u64)>,
    /// Groups, topic settings, and named values that were stored once
    /// ([`StateRecord::Kept`](crate::engine::StateRecord::Kept)).
    pub restored: RestoredState,
    /// The newest id that an engine of this database generated.
    pub newest_id: EventId,
    /// The newest commit time.
    pub newest_commit_ms: i64,
    /// The 22 bits that mark the ids which engines of this database generated.
    pub id_mark: u64,
}
