//! One piece of background work, and whether there was any.

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// Something was done; there may be more.
    Worked,
    /// Writing has stopped for good.
    Stopped,
}
