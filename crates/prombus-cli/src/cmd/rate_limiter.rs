//! Keeps a command from publishing faster than a given rate.

use std::time::Duration;
use tokio::time::Instant;

/// A chunk has at most the events of a tenth of a second, but at least one event.
const CHUNKS_A_SECOND: f64 = 10.0;
/// The longest wait: a year.
const LONGEST_SECONDS: f64 = 365.0 * 86_400.0;

/// Limits the average rate since `began`.
#[derive(Debug)]
pub struct RateLimiter {
    /// Events per second; `None` is unlimited.
    per_second: Option<f64>,
    /// When counting began; moved forward after a pause.
    began: Instant,
    /// Events allowed since `began`.
    passed: u64,
}

impl RateLimiter {
    /// Creates a limiter for this number of events per second; `None` is unlimited.
    pub fn new(per_second: Option<f64>) -> Self {
        Self { per_second, began: Instant::now(), passed: 0 }
    }

    /// The number of events to send in one chunk, at most `max`.
    pub fn chunk_size(&self, max: usize) -> usize {
        match self.per_second {
            Some(rate) => ((rate / CHUNKS_A_SECOND) as usize).clamp(1, max),
            None => max,
        }
    }

    /// Waits until `count` more events may be sent.
    pub async fn wait(&mut self, count: usize) {
        if let Some(rate) = self.per_second {
            // A tiny rate makes this infinite, which `Duration` cannot hold: wait a year at most.
            let seconds = (self.passed as f64 / rate).min(LONGEST_SECONDS);
            let due = self.began + Duration::from_secs_f64(seconds);
            tokio::time::sleep_until(due).await;
            // After a pause, start counting again: otherwise the missed time would be made up for in a burst.
            if due.elapsed() > Duration::from_secs(1) {
                (self.began, self.passed) = (Instant::now(), 0);
            }
        }
        self.passed += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_the_rate() {
        assert_eq!(RateLimiter::new(None).chunk_size(500), 500);
        assert_eq!(RateLimiter::new(Some(0.5)).chunk_size(500), 1);
        assert_eq!(RateLimiter::new(Some(100.0)).chunk_size(500), 10);
        assert_eq!(RateLimiter::new(Some(1e6)).chunk_size(500), 500);
    }

    #[tokio::test]
    async fn the_lowest_rate_waits_and_does_not_panic() {
        let mut rate = RateLimiter::new(Some(f64::MIN_POSITIVE));
        rate.wait(1).await;
        let waited = tokio::time::timeout(Duration::from_millis(10), rate.wait(1)).await;
        assert!(waited.is_err());
    }
}
