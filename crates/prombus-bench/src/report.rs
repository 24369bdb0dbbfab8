//! The results of a run.

use crate::ledger::Balance;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Latencies of a run, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of measured latencies.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

/// A histogram of latencies in nanoseconds, up to ten minutes.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty histogram.
    ///
    /// # Errors
    /// Never with these bounds.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 600_000_000_000, 3)?))
    }

    /// Adds a latency.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// The percentiles of all latencies so far.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1e6;
        Percentiles {
            count: self.0.len(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: self.0.max() as f64 / 1e6,
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measurement {
    /// Messages that were measured or, in a run with groups, deliveries. The warm-up is not counted.
    pub count: u64,
    /// The time in which they arrived.
    pub seconds: f64,
    /// Messages or deliveries per second.
    pub per_second: f64,
    /// Payload bytes per second.
    pub bytes_per_second: f64,
    /// Latency from the time at which a message was due to its answer.
    pub publish: Percentiles,
    /// Latency from the time at which a message was due to its delivery.
    pub deliver: Percentiles,
    /// CPU seconds of the client during the measurement.
    pub client_cpu_seconds: f64,
    /// CPU seconds of the server during the measurement, if its process is known.
    pub server_cpu_seconds: Option<f64>,
    /// Resident memory of the server at the end.
    pub server_resident_bytes: Option<u64>,
    /// Messages or deliveries in each second, in order.
    pub series: Vec<u64>,
    /// The account of all messages.
    pub balance: Balance,
}

impl Measurement {
    /// CPU time of the server per message or delivery, in microseconds.
    #[must_use]
    pub fn server_cpu_us(&self) -> Option<f64> {
        self.server_cpu_seconds.filter(|_| self.count > 0).map(|cpu| cpu * 1e6 / self.count as f64)
    }

    /// How many cores the client kept busy.
    #[must_use]
    pub fn client_cores(&self) -> f64 {
        if self.seconds > 0.0 { self.client_cpu_seconds / self.seconds } else { 0.0 }
    }

    /// How many cores the server kept busy.
    #[must_use]
    pub fn server_cores(&self) -> Option<f64> {
        self.server_cpu_seconds.filter(|_| self.seconds > 0.0).map(|cpu| cpu / self.seconds)
    }
}

/// A duration in nanoseconds.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats a whole number with a comma between groups of three digits.
#[must_use]
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let shown = [0.0, 7.4, 999.0, 1_000.0, 123_456.0, 1_234_567.0].map(grouped);
        assert_eq!(shown, ["0", "7", "999", "1,000", "123,456", "1,234,567"]);
    }
}
