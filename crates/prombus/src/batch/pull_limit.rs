//! Limits on the result of one read or pull.

/// The limits of one pull. The member's own window and batch size apply as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimit {
    /// The maximum number of deliveries.
    pub events: u32,
    /// The maximum size of the events in bytes. One event is returned even if it is larger.
    pub bytes: usize,
}

impl Default for PullLimit {
    fn default() -> Self {
        Self { events: u32::MAX, bytes: 1 << 20 }
    }
}
