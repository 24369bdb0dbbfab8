//! The waits between attempts to reach a server: each is twice as long as the previous one, with jitter.

use prombus_protocol::Uuid;
use std::time::Duration;

/// The first wait, before jitter.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait, before jitter.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A sequence of waits.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// The next wait, before jitter.
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST_WAIT }
    }

    /// Starts again with the shortest wait.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST_WAIT;
    }

    /// The next wait, varied by up to a fifth, so that clients that lost the same server do not all reconnect at once.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST_WAIT);
        // The low bits of a version 4 UUID are random.
        let random = Uuid::new_v4().as_u128() as u32;
        wait.mul_f64(0.8 + 0.4 * f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_vary_by_at_most_a_fifth() {
        let mut backoff = Backoff::new();
        for base in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next_wait().as_millis();
            assert!((base * 8 / 10..=base * 12 / 10).contains(&wait), "{wait} ms instead of {base}");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST_WAIT.mul_f64(1.2));
    }
}
