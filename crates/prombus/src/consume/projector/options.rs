//! The options of a projector, and its counters.

use crate::clock::{Clock, SystemClock};
use prombus_protocol::Start;
use std::sync::Arc;
use std::time::Duration;

/// The options of a projector.
#[derive(Clone)]
pub struct ProjectorOptions {
    /// The topic that is folded.
    pub input: String,
    /// The topic of the states.
    pub output: String,
    /// The group that reads the input.
    pub group: String,
    /// Where a new group starts. Default: at the oldest event.
    pub from: Start,
    /// The most events that are folded together. Default: 100.
    pub batch_size: u32,
    /// How often [`Projection::tick`](super::Projection::tick) is called. Default: never.
    pub tick_every: Option<Duration>,
    /// The source of time. Default: the system clock.
    pub clock: Arc<dyn Clock>,
}

impl ProjectorOptions {
    /// Options with the defaults.
    pub fn new(input: impl Into<String>, output: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            input: input.into(),
            output: output.into(),
            group: group.into(),
            from: Start::Earliest,
            batch_size: 100,
            tick_every: None,
            clock: Arc::new(SystemClock::default()),
        }
    }
}

impl std::fmt::Debug for ProjectorOptions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ProjectorOptions({} -> {}, {})", self.input, self.output, self.group)
    }
}

/// The counters of a projector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectorFigures {
    /// Events that were folded.
    pub folded: u64,
    /// Redelivered events that had been folded before.
    pub skipped: u64,
    /// Events that could not be folded.
    pub rejected: u64,
    /// States that were published.
    pub published: u64,
}
