//! Settling a delivery: the verdict of a member, and its outcome.

use crate::delivery::Millis;

/// The verdict of a member on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Done.
    Ack,
    /// Failed: it is redelivered after the delay, or after a backoff.
    Nack {
        /// How long to wait at least.
        delay_ms: Option<u64>,
        /// What went wrong.
        reason: Option<&'a str>,
    },
    /// Failed permanently: it becomes a dead letter at once.
    GiveUp {
        /// What went wrong.
        reason: Option<&'a str>,
    },
    /// Not processed: it goes to other members at once, and the attempt does not count.
    Release,
    /// Not done yet: the lease runs this long from now.
    Extend {
        /// How long; a second at least.
        extend_ms: u64,
    },
}

/// The outcome of a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It counted.
    Counted,
    /// The event is leased to a newer member, or is settled: nothing changed.
    Stale,
    /// The lease ends this many milliseconds from now.
    Extended(Millis),
}
