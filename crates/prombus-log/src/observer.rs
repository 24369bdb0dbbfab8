//! Callbacks from the log to its owner: one per committed batch, and notices for operators.

use crate::error::Fault;
use crate::topics::TopicId;
use std::fmt;
use std::time::Duration;

/// The events that a batch added to one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedRun {
    /// The topic.
    pub topic: TopicId,
    /// The first added seq.
    pub first_seq: u64,
    /// The last added seq, which is the topic's newest durable seq.
    pub last_seq: u64,
}

/// A batch that became durable.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// The number of the batch. All tickets up to it are durable.
    pub batch: u64,
    /// The number of events in the batch.
    pub events: usize,
    /// The size of the batch in the log.
    pub bytes: usize,
    /// The added events of each topic, one item per topic.
    pub runs: &'a [CommittedRun],
    /// The time that the write and the fdatasync took.
    pub duration: Duration,
}

/// A message for the operator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Damage was found. The same damage is not reported again.
    Damaged(Fault),
    /// An unfinished batch at the end of the log was cut off when the log was opened. It contains no acknowledged
    /// event.
    TornTail {
        /// The segment.
        file: String,
        /// The position of the cut.
        position: u64,
        /// The file in which the bytes are kept.
        kept_in: String,
        /// The number of bytes.
        bytes: u64,
    },
    /// A missing or damaged index file was rebuilt.
    IndexRebuilt {
        /// The index file.
        file: String,
    },
    /// A file cannot be read at present. Further failures are not reported until
    /// [`ReadableAgain`](Self::ReadableAgain).
    Unreadable {
        /// The file, the position, and the system's error.
        error: String,
    },
    /// All reads that failed before have succeeded.
    ReadableAgain,
    /// The disk has no room for another segment. Sent once, however many appends are refused, until
    /// [`StorageFreed`](Self::StorageFreed); sent again if `refused_bytes` changes between `Some` and `None`.
    StorageFull {
        /// The system's error.
        error: String,
        /// `None`: when the current segment is full, publishers are refused. `Some`: a segment for small appends is
        /// prepared, and only appends that need this many bytes in a segment, or more, are refused.
        refused_bytes: Option<u64>,
    },
    /// The disk has room for all segments again. Sent once after [`StorageFull`](Self::StorageFull).
    StorageFreed,
    /// Writing stopped for good.
    Poisoned {
        /// The reason.
        reason: String,
    },
    /// A checkpoint could not be written; the log continues, and opening it takes longer.
    CheckpointFailed {
        /// The system's error.
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
            Self::StorageFull { error, refused_bytes: None } => {
                write!(formatter, "no room for another segment: {error}")
            }
            Self::StorageFull { error, refused_bytes: Some(bytes) } => write!(
                formatter,
                "no room for a segment of the size that a large publish needs: {error}; publishes that need {bytes} bytes or \
                 more are refused, small ones are stored"
            ),
            Self::StorageFreed => write!(formatter, "there is room for segments again"),
            Self::Poisoned { reason } => write!(formatter, "writing stopped: {reason}"),
            Self::CheckpointFailed { error } => {
                write!(formatter, "a checkpoint could not be written: {error}")
            }
        }
    }
}

/// Receives callbacks from the log. They run on the log's own threads, or on the thread of a call to the log: for
/// example, the read that finds damage reports it. They must return soon. A callback must not drop the last
/// [`Log`](crate::Log), because closing waits for the log's threads.
pub trait Observer: Send + Sync + 'static {
    /// A batch is durable. Threads that waited for it are already awake.
    fn committed(&self, committed: &Committed<'_>) {
        let _ = committed;
    }

    /// An append that returned [`QueueFull`](crate::AppendError::QueueFull) may be retried. Called often, so it must cost
    /// almost nothing when no append waits.
    fn room(&self) {}

    /// There is a message for the operator.
    fn notice(&self, notice: &Notice) {
        let _ = notice;
    }
}

/// Ignores everything.
#[derive(Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
