//! The time at which frames are handled, read once for all frames that are handled together.

/// The time on both clocks, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct FrameTime {
    /// On the steady clock.
    pub(super) steady_ms: u64,
    /// Since 1970.
    pub(super) wall_ms: i64,
}
