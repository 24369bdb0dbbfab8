//! The verdict of a member on a delivery, and its outcome.

use crate::delivery::Millis;

/// The verdict of a member on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The event was processed.
    Ack,
    /// Processing failed: the event is redelivered after the delay or, without one, after a backoff.
    Nack {
        /// The minimum delay.
        delay_ms: Option<u64>,
        /// The error.
        reason: Option<&'a str>,
    },
    /// Processing failed permanently: the event becomes a dead letter at once.
    GiveUp {
        /// The error.
        reason: Option<&'a str>,
    },
    /// The event was not processed: it goes to other members at once, and the attempt does not count.
    Release,
    /// Processing takes longer: the lease expires this long from now.
    Extend {
        /// The time until the lease expires; a second at least.
        extend_ms: u64,
    },
}

/// The outcome of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// The verdict was applied.
    Counted,
    /// The event is leased to a newer holder or is settled, so nothing changed.
    Stale,
    /// The lease expires this many milliseconds from now.
    Extended(Millis),
}
