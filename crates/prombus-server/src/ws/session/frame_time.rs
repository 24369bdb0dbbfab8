//! The time at which frames are handled, read once for all frames that are handled together.

/// The time on both clocks, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct FrameTime {
    pub(super) steady_ms: u64,
    pub(super) wall_ms: i64,
}
