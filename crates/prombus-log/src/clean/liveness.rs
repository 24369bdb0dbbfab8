//! Which events live, said by the caller, and how a log is cleaned.

use crate::topics::TopicId;

/// Says which events live. Events of deleted topics are dead without asking.
///
/// It may read the log and append to it, but not close it: closing waits for cleaning, which waits for the answer.
pub trait Liveness {
    /// The first seq of the topic that may live; everything below it is dead. It only rises.
    fn first_live(&self, topic: TopicId) -> u64;
    /// Whether single events at or past [`first_live`](Self::first_live) may be dead (compaction).
    fn is_sparse(&self, topic: TopicId) -> bool;
    /// How many events of a sparse topic live among these seqs, and about how many bytes of frames they take. `None`: not
    /// known, all count as live.
    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount>;
    /// Whether one event of a sparse topic, at or past [`first_live`](Self::first_live), lives. Returns only change from true
    /// to false.
    fn is_live(&self, topic: TopicId, seq: u64) -> bool;
}

/// Events and what they take on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCount {
    /// How many events.
    pub events: u64,
    /// What their frames take.
    pub bytes: u64,
}

/// How a log is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanOptions {
    /// Whether to look at sparse topics; else their events at or past [`Liveness::first_live`] all live.
    pub compact: bool,
    /// Share of the time that reading and writing may take; 100 is as fast as it goes.
    pub duty_percent: u8,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self { compact: true, duty_percent: 25 }
    }
}

/// What cleaning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments that were all dead and are free to be used again.
    pub segments_retired: usize,
    /// Segments that were rewritten.
    pub segments_rewritten: usize,
    /// Events that are gone.
    pub events_removed: u64,
    /// Bytes of log that are gone.
    pub bytes_removed: u64,
    /// The disk had no room to rewrite segments; segments without a live event were still retired.
    pub was_full: bool,
    /// Some segments could not be read and stayed as they are: worth another try later.
    pub was_unreadable: bool,
}

impl CleanReport {
    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.segments_retired == 0 && self.segments_rewritten == 0
    }
}
