//! The performance goals of prombus, relative to its peers and for itself.

use crate::load::Load;
use crate::results::{Figures, Results};

/// A figure of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Rate,
    AnsweredP50,
    AnsweredP99,
    DeliveredP50,
    DeliveredP99,
}

impl Figure {
    fn of(self, figures: &Figures) -> f64 {
        match self {
            Self::Rate => figures.rate.median,
            Self::AnsweredP50 => figures.publish_p50_ms.median,
            Self::AnsweredP99 => figures.publish_p99_ms.median,
            Self::DeliveredP50 => figures.deliver_p50_ms.median,
            Self::DeliveredP99 => figures.deliver_p99_ms.median,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Rate => "",
            Self::AnsweredP50 => ", p50 to the answer",
            Self::AnsweredP99 => ", p99 to the answer",
            Self::DeliveredP50 => ", p50 to the delivery",
            Self::DeliveredP99 => ", p99 to the delivery",
        }
    }
}

/// The goal for the ratio of prombus to a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Goals relative to peers: load, peer, figure, and the bound of the ratio.
const WANTED: [(&str, &str, Figure, Bound); 18] = [
    ("publish", "redis-everysec", Figure::Rate, Bound::AtLeast(1.2)),
    ("publish", "redis-always", Figure::Rate, Bound::AtLeast(3.5)),
    ("publish", "nats", Figure::Rate, Bound::AtLeast(2.0)),
    ("publish-4", "redis-everysec", Figure::Rate, Bound::AtLeast(1.5)),
    ("publish-4", "redis-always", Figure::Rate, Bound::AtLeast(2.0)),
    ("publish-4", "nats", Figure::Rate, Bound::AtLeast(2.5)),
    ("round-trip", "redis-everysec", Figure::Rate, Bound::AtLeast(1.8)),
    ("round-trip", "redis-always", Figure::Rate, Bound::AtLeast(4.5)),
    ("round-trip", "nats", Figure::Rate, Bound::AtLeast(3.5)),
    ("fan-out", "redis-everysec", Figure::Rate, Bound::AtLeast(2.5)),
    ("fan-out", "redis-always", Figure::Rate, Bound::AtLeast(3.5)),
    ("fan-out", "nats", Figure::Rate, Bound::AtLeast(5.0)),
    ("steady", "redis-always", Figure::AnsweredP50, Bound::AtMost(1.1)),
    ("steady", "redis-always", Figure::AnsweredP99, Bound::AtMost(1.1)),
    ("steady", "redis-always", Figure::DeliveredP50, Bound::AtMost(1.1)),
    ("steady", "redis-always", Figure::DeliveredP99, Bound::AtMost(1.1)),
    ("steady", "nats", Figure::AnsweredP99, Bound::AtMost(0.5)),
    ("steady", "nats", Figure::DeliveredP99, Bound::AtMost(0.5)),
];

/// Goals for loads that run on prombus alone: load, base load, and the least ratio of their rates.
const WANTED_ALONE: [(&str, &str, f64); 4] = [
    ("client-ids", "publish", 0.85),
    ("client-ids-4", "publish-4", 0.85),
    ("sustained", "publish", 0.75),
    ("sustained-4", "publish-4", 0.75),
];

/// The goal for the CPU time of the server per published message.
const SERVER_CPU_US: f64 = 1.5;

/// A goal and the figure that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The load and the figure.
    pub title: String,
    /// The peer or load that it is compared with.
    pub compared_with: String,
    /// The measured figure. `None` for latencies if the peer did not keep up with the rate: they would be meaningless.
    pub measured: Option<f64>,
    /// The goal in words.
    pub wanted: String,
    /// The text after the figure: `x` for ratios, or a unit.
    pub unit: &'static str,
    /// Whether the goal is reached.
    pub is_reached: bool,
}

/// The verdicts on all goals whose figures were measured on both sides.
#[must_use]
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    let beside_peers = WANTED.iter().filter_map(|&(load, peer, figure, bound)| {
        let load = Load::named(load)?;
        let (ours, theirs) = (results.figures(load.name, "prombus")?, results.figures(load.name, peer)?);
        let keeps_up = |server| figure == Figure::Rate || results.holds_rate(&load, server);
        let ratio = figure.of(&ours) / figure.of(&theirs);
        let (is_reached, wanted) = match bound {
            Bound::AtLeast(least) => (ratio >= least, format!("at least {least}")),
            Bound::AtMost(most) => (ratio <= most, format!("at most {most}")),
        };
        let title = format!("{}{}", load.title, figure.title());
        let is_reached = is_reached && keeps_up("prombus");
        let measured = keeps_up(peer).then_some(ratio);
        Some(Verdict { title, compared_with: peer.into(), measured, wanted, unit: "x", is_reached })
    });
    let held = WANTED_ALONE.iter().filter_map(|&(load, base, part)| {
        let title = Load::named(load)?.title.into();
        let compared_with = Load::named(base)?.title.into();
        let ratio =
            results.figures(load, "prombus")?.rate.median / results.figures(base, "prombus")?.rate.median;
        let wanted = format!("at least {part}");
        Some(Verdict {
            title,
            compared_with,
            measured: Some(ratio),
            wanted,
            unit: "x",
            is_reached: ratio >= part,
        })
    });
    let cpu = ["publish", "publish-4"].iter().filter_map(|load| {
        let title = format!("server CPU per message, {}", Load::named(load)?.title);
        let measured = results.figures(load, "prombus")?.server_cpu_us.median;
        let wanted = format!("under {SERVER_CPU_US} µs");
        let is_reached = measured < SERVER_CPU_US;
        Some(Verdict {
            title,
            compared_with: String::new(),
            measured: Some(measured),
            wanted,
            unit: " µs",
            is_reached,
        })
    });
    beside_peers.chain(held).chain(cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn a_ratio_is_reached_or_missed() {
        let results = results(&[
            ("publish", "prombus", 1_000.0),
            ("publish", "redis-everysec", 500.0),
            ("publish", "redis-always", 300.0),
        ]);
        let verdicts = verdicts(&results);
        let of = |peer: &str| verdicts.iter().find(|verdict| verdict.compared_with == peer).unwrap();
        assert!(of("redis-everysec").is_reached);
        assert_eq!(of("redis-everysec").measured.map(f64::round), Some(2.0));
        assert!(!of("redis-always").is_reached, "3.33 is less than 3.5");
        assert!(
            !verdicts.iter().any(|verdict| verdict.compared_with == "nats"),
            "a goal that was not measured has no verdict"
        );
    }

    #[test]
    fn lower_is_better_for_latencies() {
        let mut results = results(&[("steady", "prombus", 10_000.0), ("steady", "nats", 10_000.0)]);
        for sample in &mut results.samples {
            let measurement = sample.measurement.as_mut().unwrap();
            measurement.per_second = 10_000.0;
            measurement.deliver.p99_ms = if sample.server == "nats" { 3.0 } else { 1.0 };
            measurement.publish.p99_ms = 1.0;
        }
        let verdicts = verdicts(&results);
        let reached: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_reached).collect();
        assert_eq!(reached, [false, true]);
    }

    #[test]
    fn latencies_of_a_peer_that_cannot_keep_up_are_not_compared() {
        let mut results = results(&[("steady", "prombus", 11_500.0), ("steady", "nats", 4_000.0)]);
        assert!(verdicts(&results).iter().all(|verdict| verdict.measured.is_none()));
        for sample in results.samples.iter_mut().filter(|sample| sample.server == "prombus") {
            sample.measurement.as_mut().unwrap().per_second = 4_000.0;
        }
        for sample in results.samples.iter_mut().filter(|sample| sample.server == "nats") {
            sample.measurement.as_mut().unwrap().per_second = 10_000.0;
        }
        assert!(verdicts(&results).iter().all(|verdict| !verdict.is_reached));
    }

    #[test]
    fn a_sustained_run_may_be_a_quarter_slower() {
        let results = results(&[("publish", "prombus", 1_000.0), ("sustained", "prombus", 740.0)]);
        let verdicts = verdicts(&results);
        let sustained = verdicts.iter().find(|verdict| verdict.title.starts_with("sustained")).unwrap();
        assert!(!sustained.is_reached);
        let cpu = verdicts.iter().find(|verdict| verdict.title.starts_with("server CPU")).unwrap();
        assert!(cpu.is_reached, "5 ms for 5,000 messages is 1 µs");
    }
}
