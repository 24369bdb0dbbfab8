//! What the log tells its owner: commits, one call a batch, and notices for operators.

use crate::error::Fault;
use crate::topics::TopicId;
use std::fmt;
use std::time::Duration;

/// What a batch added to one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedRun {
    /// The topic.
    pub topic: TopicId,
    /// The first seq that it added.
    pub first_seq: u64,
    /// The last one: the topic's newest durable seq.
    pub last_seq: u64,
}

/// A batch that became durable.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// Its number: every ticket up to it is durable.
    pub batch: u64,
    /// How many events it holds.
    pub events: usize,
    /// Its bytes in the log.
    pub bytes: usize,
    /// The topics that got events, each once.
    pub runs: &'a [CommittedRun],
    /// What the write and the fdatasync took.
    pub duration: Duration,
}

/// Something that an operator should read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Damage; each place is named once.
    Damaged(Fault),
    /// An unfinished batch at the end was cut off when the log was opened; no acknowledged event is in it.
    TornTail {
        /// The segment.
        file: String,
        /// Where it was cut.
        position: u64,
        /// Where the bytes are kept.
        kept_in: String,
        /// How many they are.
        bytes: u64,
    },
    /// An index file was lost or bad and has been made again.
    IndexRebuilt {
        /// The index file.
        file: String,
    },
    /// A file cannot be read now. Told once, until [`ReadableAgain`](Self::ReadableAgain).
    Unreadable {
        /// The file and position, and the system's error.
        error: String,
    },
    /// All reads that failed before have succeeded.
    ReadableAgain,
    /// The disk has no room for another segment: publishers are refused once the current one is full.
    StorageFull {
        /// What the system said.
        error: String,
    },
    /// There is room again.
    StorageFreed,
    /// Writing stopped for good.
    Poisoned {
        /// Why.
        reason: String,
    },
    /// A checkpoint could not be written; the log continues, and opening it takes longer.
    CheckpointFailed {
        /// What the system said.
        error: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(fault) => write!(formatter, "{fault}"),
            Self::TornTail { file, position, kept_in, bytes } => write!(
                formatter,
                "{file}: cut an unfinished batch of {bytes} bytes at position {position}, kept in {kept_in}"
            ),
            Self::IndexRebuilt { file } => write!(formatter, "{file}: rebuilt from its segment"),
            Self::Unreadable { error } => {
                write!(formatter, "{error}; readers wait and retry, nothing is skipped or settled")
            }
            Self::ReadableAgain => write!(formatter, "all files can be read again"),
            Self::StorageFull { error } => write!(formatter, "no room for another segment: {error}"),
            Self::StorageFreed => write!(formatter, "there is room for segments again"),
            Self::Poisoned { reason } => write!(formatter, "writing stopped: {reason}"),
            Self::CheckpointFailed { error } => {
                write!(formatter, "a checkpoint could not be written: {error}")
            }
        }
    }
}

/// Gets told. Calls come from the log's own threads and must return soon; the last [`Log`](crate::Log) must not be dropped in
/// one, because closing waits for these threads.
pub trait Observer: Send + Sync + 'static {
    /// A batch is durable; those who wait for it are awake already.
    fn committed(&self, committed: &Committed<'_>) {
        let _ = committed;
    }

    /// An append that was answered [`QueueFull`](crate::AppendError::QueueFull) may be tried again. Comes often and must cost
    /// next to nothing when nobody waits.
    fn room(&self) {}

    /// Something worth a log line.
    fn notice(&self, notice: &Notice) {
        let _ = notice;
    }
}

/// Ignores everything.
#[derive(Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
