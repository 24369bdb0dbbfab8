//! Publishers' ids of events that cleaning removed: they count as duplicates for `dedupe_ms` after the cleaning.

use crate::index_file::IndexFile;
use crate::manifest::KeptIndex;

/// Ids whose events were cleaned away.
pub(crate) struct KeptIds {
    pub(crate) row: KeptIndex,
    pub(crate) file: IndexFile,
}
