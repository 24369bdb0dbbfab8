//! Opens a log after a clean close, a crash or damage. Also verifies, repairs and inspects a log that is not open.

pub(crate) mod begun_segments;
pub(crate) mod build_parts;
pub(crate) mod find_log;
pub(crate) mod inspect;
pub(crate) mod new_log;
pub(crate) mod open;
pub(crate) mod open_indexes;
pub(crate) mod recovery;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod replay_batches;
pub(crate) mod replay_segments;
pub(crate) mod seq_audit;

pub(crate) mod torn_tail;
pub(crate) mod verify;
