//! The backoff of nacked events.

use super::Millis;

/// The wait after the first failed attempt.
const BACKOFF_FIRST_MS: u64 = 100;
/// The longest wait.
const BACKOFF_MAX_MS: u64 = 30_000;

/// How long a nacked event waits before its next attempt: 100 ms, doubled after each further failure up to 30 s, with a
/// jitter of ±20 %.
pub fn backoff_ms(failed_attempts: u32, jitter: u64) -> Millis {
    let doublings = failed_attempts.saturating_sub(1).min(16);
    let full = (BACKOFF_FIRST_MS << doublings).min(BACKOFF_MAX_MS);
    let mixed = (jitter ^ u64::from(failed_attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    full * 4 / 5 + mixed % (full * 2 / 5 + 1)
}
