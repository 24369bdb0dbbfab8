//! The errors of the log, one enum per family of operations, and [`Fault`]: a report of damage.

use std::fmt;
use std::io;

/// Why a log could not be opened. The folder was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder does not contain a log.
    #[error(
        "{folder} is not a prombus log: it has no MANIFEST{}; name an empty folder or the data folder of a prombus log",
        but_holds(.example)
    )]
    NotALog {
        /// The folder.
        folder: String,
        /// A file in it that does not belong to a log. `None` if the folder is empty or has only files of a log.
        example: Option<String>,
    },
    /// The folder contains files of a log, but the manifest that lists them is missing.
    #[error("{folder} has {file} but no MANIFEST; restore the MANIFEST from a backup of this folder")]
    ManifestMissing {
        /// The folder.
        folder: String,
        /// A file of the log.
        file: String,
    },
    /// Another process, or another handle in this process, has the folder open.
    #[error("{folder} is in use by another process; stop it first")]
    Locked {
        /// The folder.
        folder: String,
    },
    /// The folder was written by a newer version of this software.
    #[error("{file} has format version {found}, this build reads up to {supported}; use a newer prombus")]
    Newer {
        /// The file with the newer version.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version this code reads.
        supported: u32,
    },
    /// The user has no permission to read and write the folder, or its file system is read-only.
    #[error(
        "{folder} cannot be read and written by this user: change its permissions, or name another folder"
    )]
    ReadOnly {
        /// The folder.
        folder: String,
        /// The system's error.
        source: io::Error,
    },
    /// The disk has no room for the first files of a new log, or for the manifest of an existing log.
    #[error("the disk of {folder} is full: free some space ({needed_bytes} bytes are needed to start)")]
    Full {
        /// The folder.
        folder: String,
        /// The free space that is needed.
        needed_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Both copies of the manifest are damaged, or the checkpoint does not match the manifest.
    #[error("{0}; restore the folder from a backup")]
    ManifestDamaged(Box<Fault>),
    /// Both checkpoints are damaged. Without an intact checkpoint, the state of groups is unknown.
    #[error("both checkpoints are damaged ({newer}; {older}); restore the folder from a backup")]
    CheckpointsDamaged {
        /// The damage in the newer checkpoint.
        newer: Box<Fault>,
        /// The damage in the older checkpoint.
        older: Box<Fault>,
    },
    /// A segment that the manifest lists is missing.
    #[error(
        "{segment} is listed in the MANIFEST but missing from {folder}; copy the whole folder, or restore it from a backup"
    )]
    SegmentMissing {
        /// The folder.
        folder: String,
        /// The segment's file name.
        segment: String,
    },
    /// The caller's state could not be restored from a checkpoint that is itself intact.
    #[error("the state in {file} cannot be restored: {reason}")]
    State {
        /// The checkpoint.
        file: String,
        /// The error of [`State::restore`](crate::State::restore).
        reason: String,
    },
    /// A file that is needed cannot be read, and its content has no second copy. The folder is unchanged.
    #[error(
        "{folder}: cannot read {file} at position {position}, which holds acknowledged events or group state; \
         retry when the disk can be read again, or list what is unreadable with `prombus repair --data {folder}`"
    )]
    Unreadable {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
        /// The position in the file.
        position: u64,
        /// The system's error.
        source: io::Error,
    },
    /// An invalid option.
    #[error("{0}")]
    Options(String),
    /// A file operation failed.
    #[error("{folder}: cannot {action}")]
    Io {
        /// The folder.
        folder: String,
        /// The operation that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Why an append was refused. Nothing was written and no seq was used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The append would have to wait for the next commit or the next segment. Retry when
    /// [`Observer::room`](crate::Observer::room) is called. Returned only by methods whose name begins with `try_`, and
    /// in a log without threads by every append.
    #[error("the commit queue is full")]
    QueueFull,
    /// The append does not fit into any batch, because a batch must fit into one segment.
    #[error("an append of {bytes} bytes is too large: at most {limit_bytes} bytes fit")]
    TooLarge {
        /// The size of the append.
        bytes: u64,
        /// The size limit.
        limit_bytes: u64,
    },
    /// A key is longer than the format allows.
    #[error("a key of {bytes} bytes is too long: at most 65535 bytes are allowed")]
    KeyTooLong {
        /// The key's length.
        bytes: usize,
    },
    /// No topic has this id, or the topic was deleted.
    #[error("no topic has the internal id {0}")]
    UnknownTopic(u32),
    /// A topic name is empty or too long.
    #[error("a topic name must be 1 to 1024 bytes long, not {0}")]
    BadTopicName(usize),
    /// All internal topic ids are used up. Deleting topics does not free any.
    #[error("no more topics can be created in this log")]
    TooManyTopics,
    /// No prepared segment is left and the disk has no room for another.
    #[error("the disk is full")]
    StorageFull,
    /// Writing stopped.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// It is not known whether an id is a duplicate, because an index could not be read.
    #[error("looking up an event id failed: {0}")]
    Lookup(String),
}

/// Why the log does not write any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// A write or fdatasync failed, or a thread of the log panicked. Whether pending appends are durable is unknown.
    /// Opening the log again recovers the durable events.
    #[error("writing stopped after a failure ({0}); restart to recover")]
    Poisoned(String),
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No topic has this id, or the topic was deleted.
    #[error("no topic has the internal id {0}")]
    UnknownTopic(u32),
    /// A file could not be read. The events in it may be intact: retry later.
    #[error("cannot read {file} at position {position}")]
    Io {
        /// The file.
        file: String,
        /// The position in the file.
        position: u64,
        /// The system's error.
        source: io::Error,
    },
    /// These events could not be read. They may be intact: retry later, or continue reading after `last_seq`.
    #[error("cannot read seq {first_seq} to {last_seq} ({file} at position {position})")]
    Unreadable {
        /// The first seq that could not be read.
        first_seq: u64,
        /// The last seq that could not be read, as far as it is known.
        last_seq: u64,
        /// The file.
        file: String,
        /// The position in the file.
        position: u64,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a log could not be backed up. No incomplete copy that would open as a log is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The destination is not empty.
    #[error("{folder} is not empty, it holds {example:?}; name a folder that is new or empty")]
    NotEmpty {
        /// The folder.
        folder: String,
        /// A file in it.
        example: String,
    },
    /// The destination is inside the folder of the log.
    #[error("{folder} is inside the folder of the log itself; name a folder outside of it")]
    Inside {
        /// The folder.
        folder: String,
    },
    /// The folder cannot be created, opened or written.
    #[error("{folder} cannot be used")]
    Folder {
        /// The folder.
        folder: String,
        /// The system's error.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk of {folder} is full: about {needed_bytes} bytes are needed for the backup")]
    Full {
        /// The folder.
        folder: String,
        /// The size of the backup.
        needed_bytes: u64,
    },
    /// The log is closed, or writing stopped.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The log could not be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The backup could not be written.
    #[error("cannot write {file}")]
    Write {
        /// The file, or the folder.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a log could not be verified. Damage is not such an error: the report lists it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The folder cannot be read as a log.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file could not be read.
    #[error("cannot read {file}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Damage that was found: its position, and the affected events as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file's name inside the folder.
    pub file: String,
    /// The position of the first byte of the damaged part.
    pub position: u64,
    /// The topic of a damaged event; `None` if no event is affected or the topic is unknown.
    pub topic: Option<String>,
    /// The first affected seq; `None` if it is unknown.
    pub seq: Option<u64>,
    /// The last affected seq. If it is `None`, only `seq` is known to be affected.
    pub last_seq: Option<u64>,
    /// The damaged part.
    pub what: FaultKind,
}

/// The kind of the damaged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An event.
    Event,
    /// A state record of the caller.
    State,
    /// A record that creates or deletes a topic.
    Topic,
    /// The COMMIT frame that ends a batch. The events of the batch are then checked one by one.
    Commit,
    /// Bytes that should be a frame but are not.
    Frame,
    /// The header of a segment.
    SegmentHeader,
    /// A segment file that is too short or missing.
    SegmentShort,
    /// An index file; it is rebuilt.
    Index,
    /// A checkpoint; the other one is used instead.
    Checkpoint,
    /// One of the manifest's two copies.
    Manifest,
    /// The list of accepted losses.
    Losses,
    /// Bytes that cannot be read: not damage, unless their loss is accepted.
    Unreadable,
}

/// Completes the message of [`OpenError::NotALog`] with a file that is in the folder.
fn but_holds(example: &Option<String>) -> String {
    example.as_ref().map_or_else(String::new, |name| format!(" but holds {name:?}"))
}

impl Fault {
    pub(crate) fn new(file: impl Into<String>, position: u64, what: FaultKind) -> Self {
        Self { file: file.into(), position, topic: None, seq: None, last_seq: None, what }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            FaultKind::Event => "damaged event",
            FaultKind::State => "damaged state record",
            FaultKind::Topic => "damaged topic record",
            FaultKind::Commit => "damaged commit frame",
            FaultKind::Frame => "damaged frame",
            FaultKind::SegmentHeader => "damaged segment header",
            FaultKind::SegmentShort => "segment cut short",
            FaultKind::Index => "damaged index",
            FaultKind::Checkpoint => "damaged checkpoint",
            FaultKind::Manifest => "damaged manifest",
            FaultKind::Losses => "damaged list of accepted losses",
            FaultKind::Unreadable => "unreadable",
        };
        write!(formatter, "{}: {what} at position {}", self.file, self.position)?;
        if let Some(topic) = &self.topic {
            write!(formatter, ", topic {topic:?}")?;
        }
        match (self.seq, self.last_seq) {
            (Some(first), Some(last)) if last > first => write!(formatter, ", seq {first} to {last}"),
            (Some(seq), _) => write!(formatter, ", seq {seq}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}
