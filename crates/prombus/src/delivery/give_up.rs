//! An event whose attempts are used up.

use super::Position;

/// An event to give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveUp {
    /// The event.
    pub position: Position,
    /// How many attempts failed.
    pub attempts: u32,
    /// How many attempts are recorded if the dead letter cannot be written now: enough that no member gets the event again.
    pub spent: u32,
    /// The error of the last failure.
    pub error: String,
    /// Whether the record that its attempts are used up was written. It is written when the dead letter is first postponed.
    pub is_written_down: bool,
}
