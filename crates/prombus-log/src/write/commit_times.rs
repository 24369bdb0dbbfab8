//! Determines up to which commit time the log is **complete**: no event with that time or an earlier one can be added
//! any more, and all existing ones are durable.
//!
//! Commit times never decrease, and batches become durable in the order of their times. So a reader of several topics can
//! deliver their events in the order of commit time, topic and seq, and describe its position with these three numbers,
//! if it only reads events up to the time for which the log is complete.

use crate::write::writer::Writer;

/// Commit times that separate existing events from future ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTimes {
    /// No later append gets this time or an earlier one.
    pub closed_ms: i64,
    /// No later append gets this time or an earlier one, and every event with such a time is durable.
    pub complete_ms: i64,
    /// The newest durable batch. All events up to `complete_ms` are in it or in earlier batches.
    pub durable_batch: u64,
}

impl Writer {
    /// Ensures that later appends get a commit time that is after `closing` and not before the clock's present time,
    /// even if the clock goes back. Returns the times that are closed and complete.
    pub(crate) fn commit_times(&self, closing: i64) -> CommitTimes {
        let mut state = self.queue.state.lock();
        let floor = state.last_commit_ms.max(self.context.now_ms()).max(closing.saturating_add(1));
        state.last_commit_ms = floor;
        let appended = state.newest_ticket().batch();
        drop(state);
        let closed_ms = floor.saturating_sub(1);
        let view = self.committed.view();
        // An append that is not durable yet may have the newest durable commit time, so that time is not complete.
        let is_all_durable = view.mark.batch >= appended;
        let complete_ms = if is_all_durable { closed_ms } else { view.last_commit_ms.saturating_sub(1) };
        CommitTimes { closed_ms, complete_ms, durable_batch: view.mark.batch }
    }
}
