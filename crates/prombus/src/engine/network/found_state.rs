//! The state that a new leader starts with.

use crate::engine::{EventId, RestoredState, TopicId};
use prombus_protocol::Topic;

/// The state that a new leader found in the database after it wrote its fence.
#[derive(Clone, Debug, Default)]
pub struct FoundState {
    /// The newest commit.
    pub commit: u64,
    /// The highest topic number that was ever used.
    pub topic_number: u32,
    /// The numbers, names and newest seqs of the topics.
    pub topics: Vec<(TopicId, Topic, u64)>,
    /// The first seqs of topics from which retention removed events.
    pub firsts: Vec<(TopicId, u64)>,
    /// Groups, settings and small values.
    pub restored: RestoredState,
    /// The newest id that an engine of this database generated.
    pub newest_id: EventId,
    /// The newest commit time.
    pub newest_commit_ms: i64,
    /// The 22 bits that all ids of this database have in common.
    pub id_mark: u64,
}
