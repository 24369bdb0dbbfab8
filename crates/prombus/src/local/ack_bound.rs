//! The time limit for acks that no caller waits for, for example an ACK frame without `corr`: they are durable within 10 ms.

use crate::delivery::Millis;

/// Acks that no caller waits for are written this long after the first of them, unless an earlier commit includes them. The rest
/// of the 10 ms is for the commit that may be in progress at that time, and for the commit of the acks.
pub(super) const FLUSH_AFTER_MS: Millis = 4;
