//! The interface for reading several topics as one sequence, in the order of commit time, topic and seq.
//!
//! A position in that sequence is three numbers, no matter how many topics are read. A reader returns an event only when its
//! commit time is complete ([`CommitTimes`](crate::engine::CommitTimes)), so no event is ever added before a position that a
//! reader has reached.

use crate::batch::{EventBatch, PullLimit};
use crate::box_future::BoxFuture;
use crate::error::ReadError;
use prombus_protocol::{Filter, Pattern};
use std::fmt;
use std::str::FromStr;
use std::task::{Context, Poll};

/// A position in the sequence of all events: just after an event, or between two events. Its text form is opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusPosition {
    /// The commit time of the event.
    pub commit_ms: i64,
    /// The number of the event's topic.
    pub topic: u32,
    /// The seq of the event.
    pub seq: u64,
}

impl BusPosition {
    /// The position before all events.
    pub const START: Self = Self { commit_ms: i64::MIN, topic: 0, seq: 0 };

    /// The position after all events with this commit time or an earlier one.
    pub fn after_time(commit_ms: i64) -> Self {
        Self { commit_ms, topic: u32::MAX, seq: u64::MAX }
    }
}

const PREFIX: &str = "p1.";

impl fmt::Display for BusPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `{:x}` writes a negative time (before 1970) as its two's complement, so there is no sign.
        write!(f, "{PREFIX}{:x}.{:x}.{:x}", self.commit_ms, self.topic, self.seq)
    }
}

/// The error for a text that is not a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position that prombus returned")]
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

/// Selects the events that are read as one sequence.
#[derive(Clone, Debug)]
pub struct MergedQuery {
    /// The topics to read.
    pub pattern: Pattern,
    /// Selects events of these topics; `None` selects all.
    pub filter: Option<Filter>,
    /// The position to read after. `None` reads only events that are published later.
    pub after: Option<BusPosition>,
    /// Whether the reader continues with new events, including those of topics that are created later. If not, it ends with the
    /// commit time at which it was opened.
    pub is_live: bool,
}

/// Tells a reader when to read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// More events can be read now.
    Now,
    /// There are events whose commit time is not complete yet: read again in a millisecond.
    Soon,
    /// There is nothing to read until another event is published. A reader that is not live has reached its end.
    Later,
}

/// Events of several topics, in order.
#[derive(Clone, Debug)]
pub struct MergedChunk {
    /// The events.
    pub events: EventBatch,
    /// The position after each of the events.
    pub places: Vec<BusPosition>,
    /// The position after the last event that was examined, including events that the filter rejected.
    pub position: BusPosition,
    /// When to read again.
    pub more: More,
}

/// The reader and the result of a read. The reader is `None` if it was lost; see [`MergedReader::read`].
pub type MergedRead = (Option<Box<dyn MergedReader>>, Result<MergedChunk, ReadError>);

/// Reads a sequence of events, one chunk per call.
pub trait MergedReader: Send {
    /// Reads the next chunk. The future owns the reader and returns it with the result, because files are read on another
    /// thread. After an error the reader can be used again. It is lost if the future is dropped or if the read panics.
    fn read(self: Box<Self>, limit: PullLimit) -> BoxFuture<'static, MergedRead>;

    /// The position after the last event that was examined.
    fn position(&self) -> BusPosition;

    /// Ready when an event was published since the last chunk, or when the bus is closed or has failed.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_its_text_form_and_other_texts_are_refused() {
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
