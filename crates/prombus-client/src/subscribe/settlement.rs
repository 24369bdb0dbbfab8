//! What a consumer decides about a delivery, and the frame that says so.

use prombus_protocol::limits::MAX_NACK_DELAY_MS;
use prombus_protocol::{ClientFrame, Uuid};
use std::borrow::Cow;
use std::time::Duration;

/// The result for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    Ack,
    Nack {
        reason: String,
        /// When it is redelivered; the server's backoff if absent.
        delay: Option<Duration>,
    },
    /// Becomes a dead letter at once.
    GiveUp {
        reason: String,
    },
}

impl Settlement {
    /// Whether the event is redelivered after it.
    pub(super) fn is_retry(&self) -> bool {
        matches!(self, Self::Nack { .. })
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

/// What became of an ack or a nack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Another member has the event, or it is settled already: nothing changed.
    pub stale: bool,
}
