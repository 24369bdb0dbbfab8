//! Problems that operators should see while the bus keeps running.

/// A problem that does not stop the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The disk is full.
    StorageFull,
    /// Some files cannot be read. Readers and groups that need them wait.
    Unreadable(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::StorageFull => write!(formatter, "storage_full: the disk is full, publishes are refused"),
            Self::Unreadable(error) => write!(formatter, "read_errors: {error}"),
        }
    }
}

/// A range of unreadable events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRange {
    /// The topic.
    pub topic: String,
    /// The first seq.
    pub first_seq: u64,
    /// The last seq.
    pub last_seq: u64,
    /// The file that contains the events.
    pub file: String,
    /// The unreadable byte ranges of the file; empty if the file cannot be opened at all.
    pub bytes: Vec<std::ops::Range<u64>>,
    /// When the error was first noticed, in milliseconds since 1970.
    pub since_ms: i64,
    /// The error of the operating system.
    pub error: String,
}
