//! Reading several topics as one sequence: in the order of commit time, then topic, then seq.
//!
//! A place in that sequence is three numbers, however many topics there are. That is exact because a reader is given only what is
//! complete ([`CommitTimes`](crate::engine::CommitTimes)): nothing is ever added before a place that it has reached.

use crate::batch::{EventBatch, PullLimit};
use crate::box_future::BoxFuture;
use crate::error::ReadError;
use prombus_protocol::{Filter, Pattern};
use std::fmt;
use std::str::FromStr;
use std::task::{Context, Poll};

/// A place in the sequence of all events: behind one of them, or between two. As text it is opaque to those who keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusPosition {
    /// The commit time of the event.
    pub commit_ms: i64,
    /// The number of its topic.
    pub topic: u32,
    /// Its seq.
    pub seq: u64,
}

impl BusPosition {
    /// Before all events.
    pub const START: Self = Self { commit_ms: i64::MIN, topic: 0, seq: 0 };

    /// Behind all events up to a commit time.
    pub fn after_time(commit_ms: i64) -> Self {
        Self { commit_ms, topic: u32::MAX, seq: u64::MAX }
    }
}

const PREFIX: &str = "p1.";

impl fmt::Display for BusPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bits of a signed number: times before 1970 are written, too.
        write!(f, "{PREFIX}{:x}.{:x}.{:x}", self.commit_ms, self.topic, self.seq)
    }
}

/// A text that is not a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position that prombus gave")]
pub struct PositionError;

impl FromStr for BusPosition {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let mut parts = text.strip_prefix(PREFIX).ok_or(PositionError)?.split('.');
        let mut number = || {
            let digits = parts.next().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
            digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or(PositionError)
        };
        let (commit_ms, topic, seq) = (number()?, number()?, number()?);
        let topic = u32::try_from(topic).map_err(|_| PositionError)?;
        if parts.next().is_some() {
            return Err(PositionError);
        }
        Ok(Self { commit_ms: commit_ms as i64, topic, seq })
    }
}

/// Which events are read as one sequence.
#[derive(Clone, Debug)]
pub struct MergedQuery {
    /// The topics.
    pub pattern: Pattern,
    /// Which of their events.
    pub filter: Option<Filter>,
    /// Behind which place; `None`: behind everything that is there.
    pub after: Option<BusPosition>,
    /// Whether it follows new events, also in topics that are created later. If not, it ends at the newest event of the time it
    /// was opened.
    pub is_live: bool,
}

/// Whether there is more to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Now.
    Now,
    /// In a millisecond: some events are not complete yet.
    Soon,
    /// Not until something is published; never, if the reader is not live.
    Later,
}

/// Events of several topics, in order.
#[derive(Clone, Debug)]
pub struct MergedChunk {
    /// The events.
    pub events: EventBatch,
    /// The place behind each of them.
    pub places: Vec<BusPosition>,
    /// The place behind everything that was looked at, also what the filter left out.
    pub position: BusPosition,
    /// Whether there is more.
    pub more: More,
}

/// A reader, and what it read.
pub type MergedRead = (Option<Box<dyn MergedReader>>, Result<MergedChunk, ReadError>);

/// Reads a sequence piece by piece.
pub trait MergedReader: Send {
    /// The next piece. Files are read off the async threads, so the reader goes into the future and comes back with the result; it
    /// can be used again after an error. It is lost if the future is dropped, or if reading panicked.
    fn read(self: Box<Self>, limit: PullLimit) -> BoxFuture<'static, MergedRead>;

    /// The place behind everything that was looked at.
    fn position(&self) -> BusPosition;

    /// Ready when something was published since the last piece, or the bus ends.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_as_written_and_nothing_else_is_one() {
        let far = BusPosition { commit_ms: i64::MAX, topic: u32::MAX, seq: u64::MAX };
        let usual = BusPosition { commit_ms: 1_700_000_000_000, topic: 7, seq: 42 };
        for position in [BusPosition::START, far, usual, BusPosition::after_time(-5)] {
            let text = position.to_string();
            assert_eq!(text.parse(), Ok(position));
            assert!(text.len() <= 45, "{text}");
        }
        for text in
            ["", "p1", "p1.", "p1.1.2", "p1.1.2.3.4", "p1.+1.2.3", "p1.x.2.3", "p2.1.2.3", "p1.1.fffffffff.3"]
        {
            assert_eq!(text.parse::<BusPosition>(), Err(PositionError), "{text}");
        }
    }
}
