//! Reads the committed log. `committed_log.rs` owns the state. Most other files implement one kind of read or lookup each.

pub(crate) mod chunk;
pub(crate) mod committed_log;
pub(crate) mod damage_reports;
pub(crate) mod durable_batch;
pub(crate) mod find_id;
pub(crate) mod find_key;
pub(crate) mod find_time;
pub(crate) mod id_files;
pub(crate) mod kept_ids;
pub(crate) mod probe_unreadable;
pub(crate) mod read_health;
pub(crate) mod read_piece;
pub(crate) mod segment_index;
pub(crate) mod tail;
pub(crate) mod topic_reader;
pub(crate) mod topic_usage;
pub(crate) mod view;
