//! What a seek would do.

use prombus_protocol::CursorPosition;

/// What a seek of a group would do, if it were done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeekPreview {
    /// The cursor that the group would have.
    pub cursor: CursorPosition,
    /// How many events that the group has settled would be delivered again.
    pub redeliver: u64,
    /// How many events that the group has not settled would be skipped.
    pub skip: u64,
    /// How many leases would become void. Events above the new position would be delivered again, the others are skipped.
    pub leases: u64,
    /// How many events the group would have to settle after the seek.
    pub lag: u64,
    /// Whether the counts are exact. They are upper bounds if the group has a filter, or if events are missing between others
    /// because of compaction or damage.
    pub is_exact: bool,
}

impl Default for SeekPreview {
    fn default() -> Self {
        let cursor = CursorPosition { topic: String::new(), last_id: None, last_ts: None };
        Self { cursor, redeliver: 0, skip: 0, leases: 0, lag: 0, is_exact: true }
    }
}
