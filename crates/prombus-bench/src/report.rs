//! What came of a run.

use crate::ledger::Balance;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Latencies of a run, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// Half of them were faster.
    pub p50_ms: f64,
    /// Nine of ten were faster.
    pub p90_ms: f64,
    /// 99 of 100 were faster.
    pub p99_ms: f64,
    /// 999 of 1,000 were faster.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

/// Latencies while they are measured, in nanoseconds up to ten minutes.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    ///
    /// # Errors
    /// Never with these bounds.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 600_000_000_000, 3)?))
    }

    /// One more.
    pub fn add(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// What they are together.
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

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measurement {
    /// Messages (publish loads) or deliveries (loads with groups) that count.
    pub count: u64,
    /// The time in which they came.
    pub seconds: f64,
    /// Messages or deliveries a second.
    pub per_second: f64,
    /// Payload bytes a second.
    pub bytes_per_second: f64,
    /// From due to answered.
    pub publish: Percentiles,
    /// From due to delivered.
    pub deliver: Percentiles,
    /// CPU seconds of the client while it counted.
    pub client_cpu_seconds: f64,
    /// CPU seconds of the server while it counted, if its process is known.
    pub server_cpu_seconds: Option<f64>,
    /// Resident memory of the server at the end.
    pub server_resident_bytes: Option<u64>,
    /// Messages or deliveries in each second, in order.
    pub series: Vec<u64>,
    /// The books.
    pub balance: Balance,
}

impl Measurement {
    /// CPU time of the server for each message or delivery, in microseconds.
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

/// Nanoseconds of a duration.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A whole number with a comma every three digits.
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
