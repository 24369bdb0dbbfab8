//! Reads several topics as one sequence, in the order of commit time.

pub(super) mod feed;
pub(super) mod position;
pub(super) mod reader;
