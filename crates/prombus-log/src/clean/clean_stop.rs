//! Why a piece of cleaning ended early.

use std::io;

/// Why cleaning, or a part of it, ended early.
pub(crate) enum CleanStop {
    /// The log is closed, or writing stopped.
    Stopped,
    /// This segment is damaged.
    Damaged { segment: u64 },
    /// This segment cannot be read now.
    Unreadable { segment: u64 },
    /// The disk has no room, or refused.
    Io(io::Error),
}

impl From<io::Error> for CleanStop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
