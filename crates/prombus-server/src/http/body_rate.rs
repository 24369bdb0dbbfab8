//! The minimum rate at which a request body must arrive. Without it, a client that sends a byte now and then could hold a
//! connection and the memory of its body indefinitely.

use std::time::Duration;

/// The rate is measured over this much waiting time, so that a short network interruption does not end an upload.
const WINDOW: Duration = Duration::from_secs(10);

/// Measures the rate of one body. Only time that the server spent waiting for the client counts.
#[derive(Debug)]
pub(super) struct BodyRate {
    min_bytes_per_second: u64,
    /// Waiting time in the current window.
    waited: Duration,
    /// Bytes that arrived in the current window.
    bytes: u64,
}

impl BodyRate {
    /// A `min_bytes_per_second` of 0 turns the limit off.
    pub(super) fn new(min_bytes_per_second: u64) -> Self {
        Self { min_bytes_per_second, waited: Duration::ZERO, bytes: 0 }
    }

    pub(super) fn min_bytes_per_second(&self) -> u64 {
        self.min_bytes_per_second
    }

    /// Counts a piece that arrived after waiting for `waited`. Returns whether the body is fast enough.
    pub(super) fn is_enough(&mut self, waited: Duration, bytes: usize) -> bool {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < WINDOW {
            return true;
        }
        let wanted = self.waited.as_secs_f64() * self.min_bytes_per_second as f64;
        let is_enough = self.bytes as f64 >= wanted;
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        is_enough
    }
}
