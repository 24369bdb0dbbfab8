//! Ids that publishers chose, of events that cleaning (retention or compaction) removed. For `dedupe_ms` after the
//! cleaning, a publish with such an id is a duplicate.

use crate::index_file::IndexFile;
use crate::manifest::KeptIndex;

/// A kept index: its row in the manifest, and its open file.
pub(crate) struct KeptIds {
    pub(crate) row: KeptIndex,
    pub(crate) file: IndexFile,
}
