//! Keeps a command from publishing faster than a given rate.

use std::time::Duration;
use tokio::time::Instant;

/// With a low rate, a chunk is what may go in a tenth of a second.
const CHUNKS_A_SECOND: f64 = 10.0;
/// A year.
const LONGEST_SECONDS: f64 = 365.0 * 86_400.0;

/// Keeps a rate on average: it counts what has gone since it began.
#[derive(Debug)]
pub struct RateLimiter {
    per_second: Option<f64>,
    began: Instant,
    gone: u64,
}

impl RateLimiter {
    /// So many per second, or no limit.
    pub fn new(per_second: Option<f64>) -> Self {
        Self { per_second, began: Instant::now(), gone: 0 }
    }

    /// How many may go together, of at most `most`.
    pub fn together(&self, most: usize) -> usize {
        match self.per_second {
            Some(rate) => ((rate / CHUNKS_A_SECOND) as usize).clamp(1, most),
            None => most,
        }
    }

    /// Waits until so many more may go.
    pub async fn wait(&mut self, count: usize) {
        if let Some(rate) = self.per_second {
            // A rate may be so low that its time is no number: then it waits for the longest.
            let seconds = (self.gone as f64 / rate).min(LONGEST_SECONDS);
            let due = self.began + Duration::from_secs_f64(seconds);
            tokio::time::sleep_until(due).await;
            // Time that was lost elsewhere is not made up for in a burst.
            if due.elapsed() > Duration::from_secs(1) {
                (self.began, self.gone) = (Instant::now(), 0);
            }
        }
        self.gone += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_the_rate() {
        assert_eq!(RateLimiter::new(None).together(500), 500);
        assert_eq!(RateLimiter::new(Some(0.5)).together(500), 1);
        assert_eq!(RateLimiter::new(Some(100.0)).together(500), 10);
        assert_eq!(RateLimiter::new(Some(1e6)).together(500), 500);
    }

    #[tokio::test]
    async fn the_lowest_rate_waits_and_does_not_panic() {
        let mut rate = RateLimiter::new(Some(f64::MIN_POSITIVE));
        rate.wait(1).await;
        let waited = tokio::time::timeout(Duration::from_millis(10), rate.wait(1)).await;
        assert!(waited.is_err());
    }
}
