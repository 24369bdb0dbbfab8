//! What a projector is told, and what it tells.

use crate::clock::{Clock, SystemClock};
use prombus_protocol::Start;
use std::sync::Arc;
use std::time::Duration;

/// Where a projector reads and writes.
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
    /// How many events are folded together at most. Default: 100.
    pub batch_size: u32,
    /// How often [`Projection::tick`](super::Projection::tick) is called. Default: never.
    pub tick_every: Option<Duration>,
    /// Where the time comes from. Default: the system.
    pub clock: Arc<dyn Clock>,
}

impl ProjectorOptions {
    /// The defaults.
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

/// What a projector did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectorFigures {
    /// Events that were folded.
    pub folded: u64,
    /// Events that came again and had been folded.
    pub skipped: u64,
    /// Events that made no sense.
    pub rejected: u64,
    /// States that were published.
    pub published: u64,
}
