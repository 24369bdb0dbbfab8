//! An event whose attempts are used up.

use super::Position;

/// An event to give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// The event.
    pub position: Position,
    /// How many attempts failed.
    pub attempts: u32,
    /// How many attempts are recorded if the dead letter cannot be written now. With this many, no member gets the event
    /// again after a restart.
    pub spent: u32,
    /// The error of the last failure.
    pub error: String,
    /// Whether it is recorded that the attempts are used up. This is recorded when the dead letter is first postponed.
    pub is_recorded: bool,
}
