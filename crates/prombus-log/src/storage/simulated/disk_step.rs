//! The operations that a power cut can hit.

use crate::storage::SyncPoint;

/// A mutating operation: what `Disk::cut_after` counts and what `Disk::last_cut` names.
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
