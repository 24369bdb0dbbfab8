//! What a run does.

use std::time::Duration;

/// Unacked deliveries of a group at most, however large the window is: the bus takes no more.
pub const MAX_IN_FLIGHT: usize = 100_000;

/// How fast messages are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as the window lets them go.
    Full,
    /// So many a second over all publishers. A message's clock starts when it is due, sent or not.
    Rate(f64),
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Messages are sent for so long.
    Time(Duration),
    /// So many messages are sent, over all publishers.
    Messages(u64),
}

/// What a run does: publishers and consumers at once, until all that was published is answered, delivered and acked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Connections that publish.
    pub publishers: usize,
    /// Unanswered messages of one publisher at most.
    pub window: usize,
    /// The size of a payload.
    pub payload_bytes: usize,
    /// Topics that each publisher goes through in turn.
    pub topics: usize,
    /// Groups that get everything, each over a connection of its own.
    pub groups: usize,
    /// How fast.
    pub pace: Pace,
    /// How long.
    pub length: Length,
    /// What is at the begin and does not count.
    pub warm_up: Duration,
    /// A run is given up when nothing came for so long.
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
