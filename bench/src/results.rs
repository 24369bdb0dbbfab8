//! The raw results of a comparison, and figures computed from them.

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
    /// The number of the run, from 1.
    pub run: usize,
    /// The measurement, unless the run failed.
    pub measurement: Option<Measurement>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The contents of the file with raw results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// The date of the measurement, in UTC.
    pub date: String,
    /// The revision that was measured.
    pub revision: String,
    /// The machine of the measurements.
    pub machine: Machine,
    /// Payload bytes of a message.
    pub payload_bytes: usize,
    /// Maximum number of unanswered messages per publisher.
    pub window: usize,
    /// The length of a run in seconds, without the warm-up.
    pub seconds: u64,
    /// The length of a sustained run in seconds, without the warm-up.
    pub sustained_seconds: u64,
    /// The servers with their settings.
    pub servers: Vec<Description>,
    /// The servers that are not compared, with the reason.
    pub not_compared: Vec<String>,
    /// All runs, in chronological order.
    pub samples: Vec<Sample>,
}

/// The distribution of one figure over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

/// The figures of a load on a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Messages or deliveries per second.
    pub rate: Spread,
    /// Median latency from the time at which a message was due to its answer.
    pub publish_p50_ms: Spread,
    /// 99th percentile of the latency from the time at which a message was due to its answer.
    pub publish_p99_ms: Spread,
    /// Median latency from the time at which a message was due to its delivery.
    pub deliver_p50_ms: Spread,
    /// 99th percentile of the latency from the time at which a message was due to its delivery.
    pub deliver_p99_ms: Spread,
    /// Cores that the client used.
    pub client_cores: Spread,
    /// Cores that the server used.
    pub server_cores: Spread,
    /// CPU time of the server per message or delivery.
    pub server_cpu_us: Spread,
    /// Payload bytes per second.
    pub bytes_per_second: Spread,
    /// Resident memory of the server at the end.
    pub server_resident_bytes: Spread,
    /// Messages or deliveries in the slowest whole second of any run.
    pub slowest_second: u64,
}

impl Spread {
    /// The distribution of these values; `None` if there are none.
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
    /// The figures of these runs; `None` if there are none.
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
            // The last second of a run is rarely complete.
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

    /// The figures of a load on a server; `None` if no run succeeded.
    #[must_use]
    pub fn figures(&self, load: &str, server: &str) -> Option<Figures> {
        Figures::of(self.samples_of(load, server).filter_map(|sample| sample.measurement.as_ref()))
    }

    /// Whether a server kept up with the load's fixed rate, in the median. If not, its latencies are meaningless.
    #[must_use]
    pub fn holds_rate(&self, load: &Load, server: &str) -> bool {
        let wanted = load.rate.unwrap_or(STEADY_PER_SECOND) * 0.95;
        self.figures(load.name, server).is_some_and(|figures| figures.rate.median >= wanted)
    }

    /// The sum of the accounts of all runs of a load on a server.
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

    /// Whether every run succeeded, with each message delivered once and in order.
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
    fn figures_are_medians_of_the_runs() {
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
    fn raw_results_survive_a_round_trip() {
        let text = serde_json::to_string(&results(&[("publish", "prombus", 1_000.0)])).unwrap();
        let back: Results = serde_json::from_str(&text).unwrap();
        assert_eq!(back.samples.len(), 3);
    }
}
