//! The changes of a group that must be recorded to survive a restart, collected until the caller takes them.

use super::{Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;

/// How many attempts an unsettled event has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptsChange {
    /// The event.
    pub position: Position,
    /// Attempts that are used up, including one whose start this change records.
    pub attempts: u32,
    /// The event is not delivered again before this time.
    pub not_before: Millis,
    /// Why the event will be delivered again.
    pub reason: Option<RedeliveryReason>,
}

/// Changes since they were last taken.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Ranges of settled seqs: topic, first, last. A range that continues the previous one is merged with it.
    pub settled: Vec<(SourceId, u64, u64)>,
    /// Attempts, in the order in which they changed.
    pub attempts: Vec<AttemptsChange>,
    /// Lease marks: topic, and the seq up to which events may be leased when the mark is durable. The last mark of a topic
    /// applies.
    pub marks: Vec<(SourceId, u64)>,
    /// Whether these changes should become durable soon, because a member waits for them or they must not be lost. Settled
    /// ranges of events that a filter dropped, or that were removed, do not set this: they can be determined again.
    pub is_wanted: bool,
}

impl Changes {
    /// Whether there is nothing to record.
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

    /// Discards all changes of a topic.
    pub fn forget(&mut self, source: SourceId) {
        self.settled.retain(|range| range.0 != source);
        self.attempts.retain(|change| change.position.source != source);
        self.marks.retain(|mark| mark.0 != source);
    }
}
