//! The result of one read of a topic.

use crate::batch::EventBatch;

/// Consecutive events of a topic.
#[derive(Clone, Debug, Default)]
pub struct EventChunk {
    /// The events.
    pub events: EventBatch,
    /// The seq at which the next read continues.
    pub next_seq: u64,
    /// Identifies the topic. If the topic is deleted and created again, the new topic has another number.
    pub topic_number: u32,
}
