//! The bound on acks that nobody waits for: an ACK without `corr` is durable within 10 ms.

use crate::delivery::Millis;

/// Acks that nobody waits for leave this long after the first of them, if no other commit takes them along. The rest of the 10 ms is
/// for the commit that runs, and for their own.
pub(super) const FLUSH_AFTER_MS: Millis = 4;
