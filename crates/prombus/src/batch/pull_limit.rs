//! How much one read or pull returns.

/// The most that a pull returns; a member's own window and batch size limit it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullLimit {
    /// The most deliveries.
    pub events: u32,
    /// The most bytes of events; one event is returned whatever its size.
    pub bytes: usize,
}

impl Default for PullLimit {
    fn default() -> Self {
        Self { events: u32::MAX, bytes: 1 << 20 }
    }
}
