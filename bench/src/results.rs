//! Everything that was measured, raw, and what it comes to.

use crate::load::{Load, STEADY_PER_SECOND};
use crate::machine::Machine;
use crate::peer::Description;
use prombus_bench::Measurement;
use prombus_bench::ledger::Balance;
use serde::{Deserialize, Serialize};

/// One run of one load on one server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The load's name.
    pub load: String,
    /// The server's name.
    pub server: String,
    /// The how manieth run, from 1.
    pub run: usize,
    /// What was measured, unless it failed.
    pub measurement: Option<Measurement>,
    /// Why it failed.
    pub error: Option<String>,
}

/// All that is known of a comparison: the file of raw results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// The day, in UTC.
    pub date: String,
    /// The revision that was measured.
    pub revision: String,
    /// What it was measured on.
    pub machine: Machine,
    /// Payload bytes of a message.
    pub payload_bytes: usize,
    /// Unanswered messages of one publisher at most.
    pub window: usize,
    /// Seconds of a run that counted.
    pub seconds: u64,
    /// Seconds of a sustained run that counted.
    pub sustained_seconds: u64,
    /// The servers with their settings.
    pub servers: Vec<Description>,
    /// What is not compared, and why.
    pub not_compared: Vec<String>,
    /// Every run, in the order in which they were done.
    pub samples: Vec<Sample>,
}

/// The runs of a load on a server as one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Half of the runs had less.
    pub median: f64,
    /// The run with the least.
    pub min: f64,
    /// The run with the most.
    pub max: f64,
}

/// What a load on a server comes to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Messages or deliveries a second.
    pub rate: Spread,
    /// From due to answered.
    pub publish_p50_ms: Spread,
    /// From due to answered.
    pub publish_p99_ms: Spread,
    /// From due to delivered.
    pub deliver_p50_ms: Spread,
    /// From due to delivered.
    pub deliver_p99_ms: Spread,
    /// Cores that the client kept busy.
    pub client_cores: Spread,
    /// Cores that the server kept busy.
    pub server_cores: Spread,
    /// CPU time of the server for each message or delivery.
    pub server_cpu_us: Spread,
    /// Payload bytes a second.
    pub bytes_per_second: Spread,
    /// Resident memory of the server at the end.
    pub server_resident_bytes: Spread,
    /// Messages or deliveries in the slowest whole second of any run.
    pub slowest_second: u64,
}

impl Spread {
    /// The spread of these values; none of nothing.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) };
        Some(Self { median, min, max })
    }
}

impl Figures {
    /// What these runs come to; none of nothing.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Measurement>) -> Option<Self> {
        let runs: Vec<&Measurement> = runs.into_iter().collect();
        let spread = |of: &dyn Fn(&Measurement) -> f64| Spread::of(runs.iter().map(|run| of(run)).collect());
        Some(Self {
            rate: spread(&|run| run.per_second)?,
            publish_p50_ms: spread(&|run| run.publish.p50_ms)?,
            publish_p99_ms: spread(&|run| run.publish.p99_ms)?,
            deliver_p50_ms: spread(&|run| run.deliver.p50_ms)?,
            deliver_p99_ms: spread(&|run| run.deliver.p99_ms)?,
            client_cores: spread(&Measurement::client_cores)?,
            server_cores: spread(&|run| run.server_cores().unwrap_or(0.0))?,
            server_cpu_us: spread(&|run| run.server_cpu_us().unwrap_or(0.0))?,
            bytes_per_second: spread(&|run| run.bytes_per_second)?,
            server_resident_bytes: spread(&|run| run.server_resident_bytes.unwrap_or(0) as f64)?,
            // The last second of a run is seldom whole.
            slowest_second: runs
                .iter()
                .flat_map(|run| run.series.split_last().map_or(&[][..], |(_, whole)| whole))
                .copied()
                .min()
                .unwrap_or(0),
        })
    }
}

impl Results {
    /// The runs of a load on a server.
    pub fn samples_of<'a>(&'a self, load: &'a str, server: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.load == load && sample.server == server)
    }

    /// What a load on a server comes to. None if none of its runs went well.
    #[must_use]
    pub fn figures(&self, load: &str, server: &str) -> Option<Figures> {
        Figures::of(self.samples_of(load, server).filter_map(|sample| sample.measurement.as_ref()))
    }

    /// Whether a server kept up with the rate of the latencies' load in the median; if not, its latencies say nothing.
    #[must_use]
    pub fn holds_rate(&self, load: &Load, server: &str) -> bool {
        let wanted = load.rate.unwrap_or(STEADY_PER_SECOND) * 0.95;
        self.figures(load.name, server).is_some_and(|figures| figures.rate.median >= wanted)
    }

    /// The books of all runs of a load on a server together.
    #[must_use]
    pub fn balance(&self, load: &str, server: &str) -> Balance {
        let mut sum = Balance::default();
        for measurement in self.samples_of(load, server).filter_map(|sample| sample.measurement.as_ref()) {
            let Balance { sent, answered, delivered, lost, doubled, out_of_order } = measurement.balance;
            sum.sent += sent;
            sum.answered += answered;
            sum.delivered += delivered;
            sum.lost += lost;
            sum.doubled += doubled;
            sum.out_of_order += out_of_order;
        }
        sum
    }

    /// Whether every run went well, with each message once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.samples.iter().all(|sample| {
            sample.error.is_none() && sample.measurement.as_ref().is_some_and(|run| run.balance.is_clean())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::peer::Durability;

    /// Results with three runs of each of these rates.
    pub(crate) fn results(rates: &[(&str, &str, f64)]) -> Results {
        let mut results = Results { seconds: 5, sustained_seconds: 60, ..Results::default() };
        for &(load, server, rate) in rates {
            if !results.servers.iter().any(|known| known.name == server) {
                results.servers.push(Description {
                    name: server.into(),
                    version: "1.2.3".into(),
                    durability: if server == "nats" { Durability::NotSynced } else { Durability::Synced },
                    promise: "as promised".into(),
                    settings: vec!["a setting".into()],
                });
            }
            for run in 1..=3 {
                let measurement = Measurement {
                    count: 5_000,
                    seconds: 5.0,
                    per_second: rate * (0.8 + 0.1 * run as f64),
                    server_cpu_seconds: Some(0.005),
                    series: vec![1_000, 900, 10],
                    ..Measurement::default()
                };
                results.samples.push(Sample {
                    load: load.into(),
                    server: server.into(),
                    run,
                    measurement: Some(measurement),
                    error: None,
                });
            }
        }
        results
    }

    #[test]
    fn the_middle_run_counts() {
        let results = results(&[("publish", "prombus", 1_000.0)]);
        let figures = results.figures("publish", "prombus").unwrap();
        assert_eq!(figures.rate.median.round(), 1_000.0);
        assert_eq!((figures.rate.min.round(), figures.rate.max.round()), (900.0, 1_100.0));
        assert_eq!(figures.slowest_second, 900);
        assert!(results.figures("publish", "redis-always").is_none());
    }

    #[test]
    fn a_lost_message_is_not_clean() {
        let mut results = results(&[("publish", "prombus", 1_000.0)]);
        assert!(results.is_clean());
        results.samples[1].measurement.as_mut().unwrap().balance.lost = 1;
        assert!(!results.is_clean());
    }

    #[test]
    fn a_failed_run_is_not_clean_and_not_counted() {
        let mut results = results(&[("publish", "prombus", 1_000.0)]);
        results.samples[0].measurement = None;
        results.samples[0].error = Some("gone".into());
        assert!(!results.is_clean());
        assert_eq!(results.figures("publish", "prombus").unwrap().rate.min.round(), 1_000.0);
    }

    #[test]
    fn raw_results_come_back() {
        let text = serde_json::to_string(&results(&[("publish", "prombus", 1_000.0)])).unwrap();
        let back: Results = serde_json::from_str(&text).unwrap();
        assert_eq!(back.samples.len(), 3);
    }
}
