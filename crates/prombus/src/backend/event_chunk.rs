//! What one read of a topic returns.

use crate::batch::EventBatch;

/// A part of a topic that was read.
#[derive(Clone, Debug, Default)]
pub struct EventChunk {
    /// The events.
    pub events: EventBatch,
    /// The seq to continue at.
    pub next_seq: u64,
}
