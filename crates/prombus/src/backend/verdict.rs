//! The verdict of a member on a delivery, and its outcome.

use crate::delivery::Millis;

/// The verdict of a member on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The event was processed.
    Ack,
    /// Processing failed: the event is redelivered after `delay_ms`, or after a backoff if there is no `delay_ms`.
    Nack {
        /// The minimum delay until the event is redelivered.
        delay_ms: Option<u64>,
        /// Why processing failed.
        reason: Option<&'a str>,
    },
    /// Processing failed permanently: the event becomes a dead letter at once.
    GiveUp {
        /// Why processing failed.
        reason: Option<&'a str>,
    },
    /// The event was not processed: it goes to other members at once, and the attempt does not count.
    Release,
    /// Processing takes longer: the lease is extended.
    Extend {
        /// The new time until the lease expires, from now. Values below one second count as one second.
        extend_ms: u64,
    },
}

/// The outcome of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// The verdict was applied.
    Counted,
    /// Nothing changed: the event is settled or leased to another holder, or its lease could not be extended.
    Stale,
    /// The lease was extended, and expires this many milliseconds from now.
    Extended(Millis),
}
