//! Maintains the files of a log: prepares and recycles segments, and writes index files, checkpoints, the manifest and
//! backups.

pub(crate) mod accept_losses;
pub(crate) mod backup;
pub(crate) mod catalog;
pub(crate) mod checkpoints;
pub(crate) mod kept_id_files;
pub(crate) mod long_jobs;
pub(crate) mod maintenance;
pub(crate) mod prepare_segments;
pub(crate) mod recycle_segments;
pub(crate) mod reserve_file;
pub(crate) mod retire_segments;
pub(crate) mod shortage;
pub(crate) mod work;
pub(crate) mod write_indexes;
