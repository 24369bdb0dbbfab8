//! The time at which frames are handled, read once for all that are handled together.

/// The time by both clocks, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct FrameTime {
    pub(super) steady_ms: u64,
    pub(super) wall_ms: i64,
}
