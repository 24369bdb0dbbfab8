//! A commit that is queued or in flight.

use super::change::Change;
use crate::engine::EventId;
use crate::engine::outcomes::LateOutcomes;
use crate::error::StoreError;

/// A commit that is queued or in flight.
#[derive(Debug)]
pub struct PendingCommit {
    /// One above the number of the previous commit.
    pub number: u64,
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// The outcomes of each [`Change::Batch`], in order. [`Self::fill`] sets them when the database has responded.
    pub(super) late: Vec<LateOutcomes>,
    /// Whether no more changes may be added.
    pub(super) is_complete: bool,
    /// About the size of the request to the database.
    pub(super) bytes: usize,
    /// The memory that the commit takes in the queue: `bytes` and the events' prepared encodings.
    pub(super) memory_bytes: usize,
    /// The number of events, including duplicates.
    pub(super) events: usize,
    /// The commit time of the newest append.
    pub newest_ms: i64,
    /// The newest id that the engine had generated at the time of the newest append.
    pub newest_id: EventId,
}

impl PendingCommit {
    /// Sets the outcomes of the batches. `outcomes` is called with the index of each batch among the batches of this
    /// commit.
    pub(super) fn fill(&self, outcomes: impl Fn(usize) -> Result<Vec<crate::Published>, StoreError>) {
        self.late.iter().enumerate().for_each(|(at, late)| late.fill(outcomes(at)));
    }

    /// The number of events, including duplicates.
    pub fn event_count(&self) -> usize {
        self.events
    }
}
