//! A commit that waits in the queue or is on its way.

use super::change::Change;
use crate::engine::EventId;
use crate::engine::outcomes::LateOutcomes;
use crate::error::StoreError;

/// A commit that waits or is on its way.
#[derive(Debug)]
pub struct PendingCommit {
    /// Its number, one above that of the commit before.
    pub number: u64,
    /// What it changes, in order.
    pub changes: Vec<Change>,
    /// One for each [`Change::Batch`].
    pub(super) late: Vec<LateOutcomes>,
    /// Nothing more may be added to it.
    pub(super) is_complete: bool,
    pub(super) bytes: usize,
    /// What it takes in the queue.
    pub(super) memory_bytes: usize,
    pub(super) events: usize,
    /// The newest commit time of its events.
    pub newest_ms: i64,
    /// The newest id that the engine has made so far.
    pub newest_id: EventId,
}

impl PendingCommit {
    /// Says what became of its batches.
    pub(super) fn fill(&self, outcomes: impl Fn(usize) -> Result<Vec<crate::Published>, StoreError>) {
        self.late.iter().enumerate().for_each(|(at, late)| late.fill(outcomes(at)));
    }

    /// How many events it has, duplicates included.
    pub fn event_count(&self) -> usize {
        let count = |change: &Change| match change {
            Change::Batch { events, .. } => events.len(),
            _ => 0,
        };
        self.changes.iter().map(count).sum()
    }
}
