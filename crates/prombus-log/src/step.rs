//! The result of one piece of background work.

/// The result of one step of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// Some work was done; there may be more.
    Worked,
    /// Writing has stopped for good.
    Stopped,
}
