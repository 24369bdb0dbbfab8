//! The consumer's decision about a delivery, and the frame for it.

use prombus_protocol::limits::{MAX_NACK_DELAY_MS, MAX_REASON_BYTES};
use prombus_protocol::{AfterFailure, ClientFrame, FailedEvent, HandlerFailure, Uuid};
use std::borrow::Cow;
use std::time::Duration;

/// The result for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Ack,
    Nack {
        reason: String,
        /// The delay until the redelivery; `None` means the server's backoff.
        delay: Option<Duration>,
    },
    /// Gives the event up: it becomes a dead letter at once.
    GiveUp {
        reason: String,
    },
}

impl Settlement {
    /// A nack: the event is redelivered after `delay`, or after the server's backoff.
    pub(super) fn nack(reason: &str, delay: Option<Duration>) -> Self {
        Self::Nack { reason: cut(reason), delay }
    }

    /// The event is given up.
    pub(super) fn give_up(reason: &str) -> Self {
        Self::GiveUp { reason: cut(reason) }
    }

    /// Whether the event is redelivered.
    pub(super) fn is_retry(&self) -> bool {
        matches!(self, Self::Nack { .. })
    }

    /// The failure of the handler that this result reports; `None` for an ack.
    pub(super) fn failure(&self, event: FailedEvent) -> Option<HandlerFailure> {
        let (reason, next) = match self {
            Self::Ack => return None,
            Self::Nack { reason, .. } if event.attempt < event.max_attempts => (reason, AfterFailure::Retry),
            Self::Nack { reason, .. } | Self::GiveUp { reason } => (reason, AfterFailure::DeadLetter),
        };
        Some(HandlerFailure::of_event(event, reason, next))
    }

    pub(super) fn frame<'a>(&'a self, topic: &'a str, group: &'a str, id: Uuid) -> ClientFrame<'a> {
        let (topic, group) = (Cow::Borrowed(topic), Cow::Borrowed(group));
        let (reason, delay, dead) = match self {
            Self::Ack => return ClientFrame::Ack { topic, group, id },
            Self::Nack { reason, delay } => (reason, *delay, false),
            Self::GiveUp { reason } => (reason, None, true),
        };
        let delay_ms = delay.map(|delay| delay.as_millis().min(u128::from(MAX_NACK_DELAY_MS)) as u64);
        ClientFrame::Nack { topic, group, id, reason: Some(Cow::Borrowed(reason)), delay_ms, dead }
    }
}

/// Cuts a reason to the length that the server keeps, so that a long text never exceeds the frame limit.
fn cut(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}

/// The result of an ack or nack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Another member has the event, or it is settled already: nothing changed.
    pub stale: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let long = format!("a{}", "ä".repeat(20 << 20));
        let cut = format!("a{}", "ä".repeat(2047));
        assert_eq!(Settlement::nack(&long, None), Settlement::Nack { reason: cut.clone(), delay: None });
        assert_eq!(Settlement::give_up(&long), Settlement::GiveUp { reason: cut });
        assert_eq!(Settlement::give_up("short"), Settlement::GiveUp { reason: "short".to_owned() });
    }
}
