//! Appends records and commits them in batches. `writer.rs` contains the entry point, `Writer`.

pub(crate) mod append;
pub(crate) mod append_queue;
pub(crate) mod append_request;
pub(crate) mod append_state;
pub(crate) mod commit;
pub(crate) mod commit_times;
pub(crate) mod pending_batch;
pub(crate) mod recent_ids;
pub(crate) mod topic_records;
pub(crate) mod writer;
