//! Limits on the result of one read or pull.

/// The limits of one read or pull. A pull is also limited by the member's window and batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimit {
    /// The maximum number of events.
    pub events: u32,
    /// The maximum size of all events together, in bytes. If the first event alone is larger, it is returned anyway.
    pub bytes: usize,
}

impl Default for PullLimit {
    fn default() -> Self {
        Self { events: u32::MAX, bytes: 1 << 20 }
    }
}
