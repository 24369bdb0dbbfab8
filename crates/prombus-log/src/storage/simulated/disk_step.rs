//! The operations at which a power cut can happen.

use crate::storage::SyncPoint;

/// A mutating operation. `Disk::cut_after` counts them, and `Disk::last_cut` returns one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskStep {
    /// Bytes were written into a file.
    Write,
    /// A file was synced.
    Sync(SyncPoint),
    /// The folder was synced.
    SyncFolder(SyncPoint),
    /// A file was renamed.
    Rename,
    /// A file was removed.
    Remove,
    /// A file was created.
    Create,
}
