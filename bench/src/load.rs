//! The named loads. A load is the same plan for every server.

use prombus_bench::{Length, Pace, Plan};
use std::time::Duration;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Its name on the command line and in the raw results.
    pub name: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    /// Connections that publish.
    pub publishers: usize,
    /// Groups that receive every message.
    pub groups: usize,
    /// Messages per second; `None` means as fast as possible.
    pub rate: Option<f64>,
    /// Why it is run on prombus alone; `None` if it is run on the peers too.
    pub alone: Option<Alone>,
}

/// Why a load is run on prombus alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// A long run that shows whether the rate is sustained. Run once.
    Sustained,
    /// Publishes contain ids that the client generates.
    ClientIds,
}

/// The rate of the load that measures latencies.
pub const STEADY_PER_SECOND: f64 = 10_000.0;

/// All loads, in the order of the tables.
pub const LOADS: [Load; 9] = [
    Load { title: "publish, 1 connection", ..of_peers("publish", 1, 0) },
    Load { title: "publish, 4 connections", ..of_peers("publish-4", 4, 0) },
    Load { title: "publish → deliver → ack", ..of_peers("round-trip", 1, 1) },
    Load { title: "10 groups, deliveries", ..of_peers("fan-out", 1, 10) },
    Load { title: "10,000 msg/s, 1 group", rate: Some(STEADY_PER_SECOND), ..of_peers("steady", 1, 1) },
    Load { title: "client-chosen ids, 1 connection", ..of_prombus("client-ids", 1, Alone::ClientIds) },
    Load { title: "client-chosen ids, 4 connections", ..of_prombus("client-ids-4", 4, Alone::ClientIds) },
    Load { title: "sustained, 1 connection", ..of_prombus("sustained", 1, Alone::Sustained) },
    Load { title: "sustained, 4 connections", ..of_prombus("sustained-4", 4, Alone::Sustained) },
];

const fn of_peers(name: &'static str, publishers: usize, groups: usize) -> Load {
    Load { name, title: "", publishers, groups, rate: None, alone: None }
}

const fn of_prombus(name: &'static str, publishers: usize, alone: Alone) -> Load {
    Load { name, title: "", publishers, groups: 0, rate: None, alone: Some(alone) }
}

/// How long runs are.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A run, without its warm-up.
    pub run: Duration,
    /// A sustained run, without its warm-up.
    pub sustained: Duration,
}

impl Load {
    /// The load with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        LOADS.into_iter().find(|load| load.name == name)
    }

    /// How long it runs, without warm-up, starting and stopping.
    #[must_use]
    pub fn length(&self, times: Times) -> Duration {
        if self.alone == Some(Alone::Sustained) { times.sustained } else { times.run }
    }

    /// The plan for the client loop.
    #[must_use]
    pub fn plan(&self, times: Times) -> Plan {
        Plan {
            publishers: self.publishers,
            groups: self.groups,
            pace: self.rate.map_or(Pace::Full, Pace::Rate),
            length: Length::Time(self.length(times)),
            ..Plan::default()
        }
    }
}
