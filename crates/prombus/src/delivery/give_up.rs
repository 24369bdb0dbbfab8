//! An event that the group gives up.

use super::Position;

/// An event to give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// The event.
    pub position: Position,
    /// How many attempts failed.
    pub attempts: u32,
    /// The number of used attempts to record if the dead letter cannot be written now. It is at least the member's limit of
    /// attempts, so that after a restart no member with the same limit gets the event.
    pub spent: u32,
    /// The error of the last failure.
    pub error: String,
    /// Whether it is recorded that the attempts are used up. This is recorded when the dead letter is first postponed.
    pub is_recorded: bool,
}
