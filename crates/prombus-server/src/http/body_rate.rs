//! The least rate at which a body must arrive: a client that sends a byte now and then must not hold a connection and what was
//! read of its body.

use std::time::Duration;

/// Rates are measured over this much waiting, so that a short interruption of the network is no reason to end an upload.
const WINDOW: Duration = Duration::from_secs(10);

/// Measures one body. Only time in which the server waited for the client counts.
#[derive(Debug)]
pub(super) struct BodyRate {
    min_bytes_per_second: u64,
    waited: Duration,
    bytes: u64,
}

impl BodyRate {
    /// `0` turns the limit off.
    pub(super) fn new(min_bytes_per_second: u64) -> Self {
        Self { min_bytes_per_second, waited: Duration::ZERO, bytes: 0 }
    }

    pub(super) fn min_bytes_per_second(&self) -> u64 {
        self.min_bytes_per_second
    }

    /// Counts a piece that was waited for, and says whether the body is fast enough.
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
