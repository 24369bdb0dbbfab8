//! The interface of cleaning: the caller's [`Liveness`], the options and the report.

use crate::topics::TopicId;

/// Says which events live. The others are dead: cleaning may remove them. Events of deleted topics are always dead.
///
/// An implementation may read the log and append to it, but must not close it: closing waits for cleaning, which waits for
/// the implementation.
pub trait Liveness {
    /// The first seq of the topic that may live. All lower ones are dead. The returned seq must never decrease.
    fn first_live(&self, topic: TopicId) -> u64;
    /// Whether the topic is sparse: among its events from [`first_live`](Self::first_live) on, single ones may be dead,
    /// because of compaction.
    fn is_sparse(&self, topic: TopicId) -> bool;
    /// The number of live events of a sparse topic among these seqs, and the approximate size of their frames. If it is
    /// unknown (`None`), all of them count as live.
    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount>;
    /// Whether an event of a sparse topic, from [`first_live`](Self::first_live) on, lives. The result may change from true
    /// to false, but never back.
    fn is_live(&self, topic: TopicId, seq: u64) -> bool;
}

/// A number of events and their size on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCount {
    /// The number of events.
    pub events: u64,
    /// The size of their frames.
    pub bytes: u64,
}

/// The options of a cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanOptions {
    /// Whether to compact sparse topics. If not, all their events from [`Liveness::first_live`] on count as live.
    pub compact: bool,
    /// The percentage of the time that cleaning may spend reading and writing. With 100 it never rests.
    pub duty_percent: u8,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self { compact: true, duty_percent: 25 }
    }
}

/// The result of a cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments without a live event that were removed from the log.
    pub segments_retired: usize,
    /// Segments that were rewritten.
    pub segments_rewritten: usize,
    /// Events that were removed.
    pub events_removed: u64,
    /// Bytes of log that were removed.
    pub bytes_removed: u64,
    /// Whether the disk was too full to rewrite or retire some segments.
    pub was_full: bool,
    /// Whether some segments could not be read and were left as they are. Cleaning them may succeed later.
    pub was_unreadable: bool,
}

impl CleanReport {
    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.segments_retired == 0 && self.segments_rewritten == 0
    }
}
