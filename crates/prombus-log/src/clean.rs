//! Retention, compaction and the deletion of topics. `cleaner.rs` does it; `liveness.rs` is what callers implement.

pub(crate) mod clean_plan;
pub(crate) mod clean_stop;
pub(crate) mod cleaner;
pub(crate) mod keep_ids;
pub(crate) mod liveness;
pub(crate) mod rewrite_segments;
pub(crate) mod segment_liveness;
