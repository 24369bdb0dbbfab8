//! Several topics as one sequence, by commit time.

pub(super) mod feed;
pub(super) mod position;
pub(super) mod reader;
