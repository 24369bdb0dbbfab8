//! The parameters of a run.

use std::time::Duration;

/// The bus's limit of unacked deliveries per group; a larger window is reduced to it.
pub const MAX_IN_FLIGHT: usize = 100_000;

/// How fast messages are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as the window allows.
    Full,
    /// Messages per second of all publishers together. Latency is measured from when a message is due, even if it is sent later.
    Rate(f64),
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Messages are sent for this time.
    Time(Duration),
    /// This number of messages is sent by all publishers together.
    Messages(u64),
}

/// The parameters of a run: publishers and consumers run at the same time, until every message is answered, delivered and acked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections that publish.
    pub publishers: usize,
    /// Maximum number of unanswered messages per publisher.
    pub window: usize,
    /// The size of a payload.
    pub payload_bytes: usize,
    /// Number of topics; each publisher publishes to them in turn.
    pub topics: usize,
    /// Groups that receive every message, each over its own connection.
    pub groups: usize,
    /// How fast messages are sent.
    pub pace: Pace,
    /// How long the run is, without the warm-up.
    pub length: Length,
    /// Time at the start of the run that is not measured.
    pub warm_up: Duration,
    /// A run ends if nothing arrives for this time; missing messages count as lost.
    pub patience: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            publishers: 1,
            window: 1_000,
            payload_bytes: 256,
            topics: 1,
            groups: 0,
            pace: Pace::Full,
            length: Length::Time(Duration::from_secs(5)),
            warm_up: Duration::from_millis(500),
            patience: Duration::from_secs(30),
        }
    }
}
