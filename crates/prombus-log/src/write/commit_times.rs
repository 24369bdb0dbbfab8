//! Up to which commit time the log is complete.
//!
//! Commit times never fall, and batches become durable in the order of their times. So a reader of several topics can deliver
//! their events in the order of commit time, topic and seq, and describe its position with three numbers, if it reads only what
//! is **complete**: no event up to that time will be added any more.

use crate::write::writer::Writer;

/// Commit times that divide what is there from what is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTimes {
    /// No append that comes later gets this time or an earlier one.
    pub closed_ms: i64,
    /// In addition, every event of this time and earlier ones is durable.
    pub complete_ms: i64,
    /// The newest batch that is durable; all that is complete is in it or in one before it.
    pub durable_batch: u64,
}

impl Writer {
    /// Appends from now on get at least the clock's time, also if it goes back. `closing` closes the time that it names, too.
    pub(crate) fn commit_times(&self, closing: i64) -> CommitTimes {
        let mut state = self.queue.state.lock();
        let floor = state.last_commit_ms.max(self.context.now_ms()).max(closing.saturating_add(1));
        state.last_commit_ms = floor;
        let appended = state.newest_ticket().batch();
        drop(state);
        let closed_ms = floor.saturating_sub(1);
        let view = self.committed.view();
        // Appends in progress have at least the newest durable commit time.
        let is_all_durable = view.mark.batch >= appended;
        let complete_ms = if is_all_durable { closed_ms } else { view.last_commit_ms.saturating_sub(1) };
        CommitTimes { closed_ms, complete_ms, durable_batch: view.mark.batch }
    }
}
