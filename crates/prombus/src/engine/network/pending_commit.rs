//! A commit that is queued or in flight.

use super::change::Change;
use crate::engine::EventId;
use crate::engine::outcomes::LateOutcomes;
use crate::error::StoreError;

/// A commit that is queued or in flight.
#[derive(Debug)]
pub struct PendingCommit {
    /// Its number, one above that of the previous commit.
    pub number: u64,
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// One for each [`Change::Batch`].
    pub(super) late: Vec<LateOutcomes>,
    /// No more changes may be added to it.
    pub(super) is_complete: bool,
    pub(super) bytes: usize,
    /// The memory that it takes in the queue.
    pub(super) memory_bytes: usize,
    pub(super) events: usize,
    /// The newest commit time of its events.
    pub newest_ms: i64,
    /// The newest id that the engine had generated at the last append.
    pub newest_id: EventId,
}

impl PendingCommit {
    /// Sets the outcomes of its batches.
    pub(super) fn fill(&self, outcomes: impl Fn(usize) -> Result<Vec<crate::Published>, StoreError>) {
        self.late.iter().enumerate().for_each(|(at, late)| late.fill(outcomes(at)));
    }

    /// The number of its events, including duplicates.
    pub fn event_count(&self) -> usize {
        let count = |change: &Change| match change {
            Change::Batch { events, .. } => events.len(),
            _ => 0,
        };
        self.changes.iter().map(count).sum()
    }
}
