//! The loads, by name: each is the same plan for every server.

use prombus_bench::{Length, Pace, Plan};
use std::time::Duration;

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Its name on the command line and in the raw results.
    pub name: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    /// Connections that publish.
    pub publishers: usize,
    /// Groups that get everything.
    pub groups: usize,
    /// Messages a second; none is as many as go.
    pub rate: Option<f64>,
    /// What it says of prombus beyond the comparison, if it is for prombus alone.
    pub alone: Option<Alone>,
}

/// Why a load is for prombus alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It takes long, to see whether the rate stays. Done once.
    Sustained,
    /// Publishes carry ids that the client made.
    ClientIds,
}

/// The rate of the latencies' load.
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
    /// What counts of a run.
    pub run: Duration,
    /// What counts of a sustained one.
    pub sustained: Duration,
}

impl Load {
    /// The load of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        LOADS.into_iter().find(|load| load.name == name)
    }

    /// How long it runs, warm-up and all that is around it not included.
    #[must_use]
    pub fn length(&self, times: Times) -> Duration {
        if self.alone == Some(Alone::Sustained) { times.sustained } else { times.run }
    }

    /// What the client does.
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
