//! What can go wrong, one enum per family of operations.

use std::fmt;
use std::io;

/// Why a log could not be opened. Nothing that the folder held was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder holds files, but no log.
    #[error(
        "{folder} is not a prombus log: it has no MANIFEST but holds {example:?}; name an empty folder or one made by prombus"
    )]
    NotALog {
        /// The folder.
        folder: String,
        /// A file in it that is not the log's.
        example: String,
    },
    /// There are files of a log, but the root that names them is gone.
    #[error("{folder} has {file} but no MANIFEST; restore the MANIFEST from a backup of this folder")]
    ManifestMissing {
        /// The folder.
        folder: String,
        /// A file of the log.
        file: String,
    },
    /// Another process, or another handle of this one, has the folder open.
    #[error("{folder} is in use by another process; stop it first, or ask it")]
    Locked {
        /// The folder.
        folder: String,
    },
    /// The folder was written by a newer version of this software.
    #[error("{file} has format version {found}, this build reads up to {supported}; use a newer prombus")]
    Newer {
        /// The file that says so.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version this code reads.
        supported: u32,
    },
    /// The folder cannot be written.
    #[error("{folder} cannot be written: make it writable for this user, or name another folder")]
    ReadOnly {
        /// The folder.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// The disk has no room for the first files.
    #[error("the disk of {folder} is full: free some space ({needed_bytes} bytes are needed to start)")]
    Full {
        /// The folder.
        folder: String,
        /// What a new log takes.
        needed_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Both copies of the root are damaged.
    #[error("{0}; restore the folder from a backup")]
    ManifestDamaged(Box<Fault>),
    /// Neither checkpoint can be read, and without one the state of groups is not known.
    #[error("both checkpoints are damaged ({newer}; {older}); restore the folder from a backup")]
    CheckpointsDamaged {
        /// What is wrong with the newer one.
        newer: Box<Fault>,
        /// What is wrong with the older one.
        older: Box<Fault>,
    },
    /// A segment that the manifest names is not there.
    #[error(
        "{segment} is named by the MANIFEST but missing from {folder}; copy the whole folder, or restore it from a backup"
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
        /// What the caller said.
        reason: String,
    },
    /// A needed file cannot be read, and it has no second copy. The folder is unchanged.
    #[error(
        "{folder}: cannot read {file} at position {position}, which holds acknowledged events or group state; \
         retry when the disk can be read again, or list what is unreadable with `prombus repair --data {folder}`"
    )]
    Unreadable {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
        /// Where.
        position: u64,
        /// What the system said.
        source: io::Error,
    },
    /// An option that cannot work.
    #[error("{0}")]
    Options(String),
    /// The system refused a file operation.
    #[error("{folder}: {action}")]
    Io {
        /// The folder.
        folder: String,
        /// What was being done.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why an append was refused. Nothing of it was written and no seq was used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The batch in the making is full; try again after the next commit. Only from `try_append`.
    #[error("the commit queue is full")]
    QueueFull,
    /// The append alone is larger than a batch can be.
    #[error("{bytes} bytes are too large for one append: at most {limit_bytes} fit")]
    TooLarge {
        /// What it would take.
        bytes: u64,
        /// The most that fits.
        limit_bytes: u64,
    },
    /// A key is longer than the format allows.
    #[error("a key of {bytes} bytes is too long: at most 65535")]
    KeyTooLong {
        /// The key's length.
        bytes: usize,
    },
    /// The topic id is not of this log, or the topic was deleted.
    #[error("there is no topic with the internal id {0}")]
    UnknownTopic(u32),
    /// A topic name is empty or too long.
    #[error("a topic name takes 1 to 1024 bytes, not {0}")]
    BadTopicName(usize),
    /// The log has made as many topics as it can in its life.
    #[error("no more topics can be made in this log")]
    TooManyTopics,
    /// No prepared segment is left and the disk has no room for another.
    #[error("the disk is full")]
    StorageFull,
    /// Writing stopped.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// An index that had to be asked whether an id is new could not be read.
    #[error("looking up an id failed: {0}")]
    Lookup(String),
}

/// The log writes no more; what was pending has an unknown fate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// A write or fdatasync failed. Opening the log again recovers what is on disk.
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
    /// The topic id is not of this log, or the topic was deleted.
    #[error("there is no topic with the internal id {0}")]
    UnknownTopic(u32),
    /// A file could not be read. Nothing is known about the events in it: try again later.
    #[error("cannot read {file} at position {position}")]
    Io {
        /// The file.
        file: String,
        /// Where.
        position: u64,
        /// What the system said.
        source: io::Error,
    },
    /// These events could not be read. They are neither damaged nor gone: try again later, or read after `last_seq`.
    #[error("cannot read seq {first_seq} to {last_seq} ({file} at position {position})")]
    Unreadable {
        /// The first event: where the read began.
        first_seq: u64,
        /// The last one, as far as that is known.
        last_seq: u64,
        /// The file.
        file: String,
        /// Where.
        position: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a log could not be backed up. Nothing that would open as a log is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// There is something in the folder already.
    #[error("{folder} is not empty, it holds {example:?}; name a folder that is new or empty")]
    NotEmpty {
        /// The folder.
        folder: String,
        /// What is in it.
        example: String,
    },
    /// The log would be copied into itself.
    #[error("{folder} is inside the folder of the log itself; name a folder outside of it")]
    Inside {
        /// The folder.
        folder: String,
    },
    /// The folder cannot be made, opened or written.
    #[error("{folder} cannot be used")]
    Folder {
        /// The folder.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk of {folder} is full: about {needed_bytes} bytes are needed for the backup")]
    Full {
        /// The folder.
        folder: String,
        /// What the backup takes.
        needed_bytes: u64,
    },
    /// The log is closed, or writing stopped.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The system refused to read the log.
    #[error("reading {file}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused to write the backup.
    #[error("writing {file}")]
    Write {
        /// The file, or the folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why verifying ended early. Faults of the data are not errors of verifying: they are reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The folder cannot be read as a log.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system refused to read.
    #[error("reading {file}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Damage that was found: where, and what it hit as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file's name inside the folder.
    pub file: String,
    /// Where the damage is: the first byte of what does not check.
    pub position: u64,
    /// The topic of a damaged event.
    pub topic: Option<String>,
    /// The first seq that is hit.
    pub seq: Option<u64>,
    /// The last seq that is hit.
    pub last_seq: Option<u64>,
    /// What does not check.
    pub what: FaultKind,
}

/// What a [`Fault`] hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An event.
    Event,
    /// A state record of the caller.
    State,
    /// A record that makes or deletes a topic.
    Topic,
    /// The frame that ends a batch; the events of the batch are checked one by one.
    Commit,
    /// Bytes where a frame should stand.
    Frame,
    /// The header of a segment.
    SegmentHeader,
    /// A segment that is shorter than it should be.
    SegmentShort,
    /// An index file; it is rebuilt.
    Index,
    /// A checkpoint; the other one serves.
    Checkpoint,
    /// One of the manifest's two copies.
    Manifest,
    /// The list of accepted losses.
    Losses,
    /// A place that cannot be read: not damage, unless its loss is accepted.
    Unreadable,
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
