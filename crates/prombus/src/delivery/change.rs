//! What a group must write down to survive a restart, gathered until somebody takes it.

use super::{Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;

/// How many attempts an unsettled event has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptsChange {
    /// The event.
    pub position: Position,
    /// Attempts that are used up.
    pub attempts: u32,
    /// Not before this time again.
    pub not_before: Millis,
    /// Why it will be delivered again.
    pub reason: Option<RedeliveryReason>,
}

/// Changes since the last time they were taken.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Seqs that were settled: topic, first, last. Neighbours are joined when they come in order.
    pub settled: Vec<(SourceId, u64, u64)>,
    /// Attempts, in the order they happened.
    pub attempts: Vec<AttemptsChange>,
    /// Lease marks: topic, and the seq up to which events may be leased once this is durable. The last of a topic applies.
    pub marks: Vec<(SourceId, u64)>,
    /// Whether a member waits for something of this to become durable, or should not lose it; ranges that a filter dropped or
    /// that are gone can be found out again.
    pub is_wanted: bool,
}

impl Changes {
    /// Whether there is nothing to write down.
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.attempts.is_empty() && self.marks.is_empty()
    }

    pub(super) fn settle(&mut self, source: SourceId, first: u64, last: u64) {
        if let Some(range) = self.settled.last_mut()
            && range.0 == source
            && range.2 + 1 == first
        {
            range.2 = last;
            return;
        }
        self.settled.push((source, first, last));
    }

    pub(super) fn attempts(&mut self, change: AttemptsChange) {
        self.attempts.push(change);
        self.is_wanted = true;
    }

    /// Forgets everything about a topic.
    pub fn forget(&mut self, source: SourceId) {
        self.settled.retain(|range| range.0 != source);
        self.attempts.retain(|change| change.position.source != source);
        self.marks.retain(|mark| mark.0 != source);
    }
}
