//! Why cleaning ended early.

use std::io;

/// Why cleaning, or a part of it, ended early.
pub(crate) enum CleanStop {
    /// The log is closed, or writing stopped.
    Stopped,
    /// This segment is damaged.
    Damaged { segment: u64 },
    /// This segment cannot be read at present.
    Unreadable { segment: u64 },
    /// A write failed, or the disk is full.
    Io(io::Error),
}

impl From<io::Error> for CleanStop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
