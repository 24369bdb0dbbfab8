//! Cleaning: removes the events that retention, compaction and the deletion of topics have made dead. `cleaner.rs` does
//! the work. `liveness.rs` contains the trait with which the caller says which events live, that is, must be kept.

pub(crate) mod clean_plan;
pub(crate) mod clean_stop;
pub(crate) mod cleaner;
pub(crate) mod keep_ids;
pub(crate) mod liveness;
pub(crate) mod rewrite_segments;
pub(crate) mod segment_liveness;
