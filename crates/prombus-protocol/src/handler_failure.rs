//! Failures of handlers: what failed, why, and what happens next. The library and the client describe them with the same types.

use crate::one_line::one_line;
use crate::topic_name::Topic;
use std::fmt;
use uuid::Uuid;

/// The maximum length of an error in the one line of `Display`, in characters.
const ERROR_CHARS_MAX: usize = 1_000;

/// A failure of a handler, a projector, an outbox drainer or a changefeed.
///
/// `Display` writes it in one line, with an error of at most 1,000 characters: `orders seq 7 (attempt 1 of 5): no such customer; it will be retried`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerFailure {
    /// The event that could not be handled. `None` if the failure does not concern one event, for example if a database is
    /// unreachable.
    pub event: Option<FailedEvent>,
    /// The id of the row that could not be published, for an outbox drainer.
    pub row: Option<String>,
    /// The text of the error, or of the panic.
    pub error: String,
    /// What happens next.
    pub next: AfterFailure,
}

/// An event that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedEvent {
    /// Its topic.
    pub topic: Topic,
    /// Its position in the topic.
    pub seq: u64,
    /// Its id.
    pub id: Uuid,
    /// Which attempt failed, from 1.
    pub attempt: u32,
    /// The number of attempts after which the event is given up.
    pub max_attempts: u32,
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterFailure {
    /// The event, the row or the step is tried again.
    Retry,
    /// The event becomes a dead letter in `dlq.<topic>`; a row of an outbox gets the status `dead`. An event of a topic `dlq.…`
    /// stays where it is and is not delivered to the group again.
    DeadLetter,
    /// The step is left out, and the work continues with the next one.
    Skip,
    /// The handler has ended.
    Stop,
}

impl HandlerFailure {
    /// A failure to handle an event.
    pub fn of_event(event: FailedEvent, error: impl Into<String>, next: AfterFailure) -> Self {
        Self { event: Some(event), row: None, error: error.into(), next }
    }

    /// A failure to publish a row of an outbox.
    pub fn of_row(row: impl Into<String>, error: impl Into<String>, next: AfterFailure) -> Self {
        Self { event: None, row: Some(row.into()), error: error.into(), next }
    }

    /// A failure that does not concern one event or row.
    pub fn general(error: impl Into<String>, next: AfterFailure) -> Self {
        Self { event: None, row: None, error: error.into(), next }
    }
}

impl fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(FailedEvent { topic, seq, attempt, max_attempts, .. }) = &self.event {
            write!(f, "{topic} seq {seq} (attempt {attempt} of {max_attempts}): ")?;
        } else if let Some(row) = &self.row {
            write!(f, "row {row}: ")?;
        }
        write!(f, "{}; {}", one_line(&self.error, ERROR_CHARS_MAX), self.next)
    }
}

impl fmt::Display for AfterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "it will be retried",
            Self::DeadLetter => "it becomes a dead letter",
            Self::Skip => "it is skipped",
            Self::Stop => "the handler has stopped",
        })
    }
}
