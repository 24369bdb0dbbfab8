//! The bound on acks that no caller waits for: an ACK without `corr` is durable within 10 ms.

use crate::delivery::Millis;

/// Acks that no caller waits for are written this long after the first of them, unless an earlier commit includes them. The rest
/// of the 10 ms is for the commit that is in progress, and for their own commit.
pub(super) const FLUSH_AFTER_MS: Millis = 4;
