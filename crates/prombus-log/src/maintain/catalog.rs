//! The manifest of an open log, and the reserve file, which is removed so that the manifest can be written on a full
//! disk. Only the holder of the maintenance lock writes the manifest.

use crate::layout::index_name;
use crate::maintain::reserve_file::ReserveFile;
use crate::manifest::{Manifest, SegmentRow};
use crate::segment::Segment;
use crate::storage::{Storage, is_full, remove_if_there};
use std::io;
use std::sync::Arc;

/// The manifest of an open log, and the reserve file.
pub(crate) struct Catalog {
    pub(crate) manifest: Manifest,
    pub(crate) reserve: ReserveFile,
}

impl Catalog {
    pub(crate) fn new(manifest: Manifest) -> Self {
        Self { manifest, reserve: ReserveFile::default() }
    }

    /// A number for a new file.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.manifest.next_number += 1;
        self.manifest.next_number - 1
    }

    /// Writes the manifest. It lists `segments`, then the prepared segments that it listed before, but none of those in
    /// `gone`.
    pub(crate) fn write(
        &mut self,
        storage: &dyn Storage,
        segments: &[Arc<Segment>],
        gone: &[Arc<Segment>],
    ) -> io::Result<()> {
        let mut rows: Vec<SegmentRow> = Vec::with_capacity(self.manifest.segments.len() + 1);
        for segment in segments {
            let reserve = self.row(segment.id.number).is_some_and(|row| row.reserve);
            rows.push(SegmentRow { id: segment.id, sealed: segment.sealed(), reserve });
        }
        // Prepared segments, and one that the committer has just taken and that is not in the view yet.
        let is_in = |list: &[Arc<Segment>], number| list.iter().any(|segment| segment.id.number == number);
        let is_other = |row: &&SegmentRow| !is_in(segments, row.id.number) && !is_in(gone, row.id.number);
        rows.extend(self.manifest.segments.iter().filter(is_other));
        let before = std::mem::replace(&mut self.manifest.segments, rows);
        self.manifest.generation += 1;
        let mut written = self.manifest.write(storage);
        if written.as_ref().is_err_and(is_full) && self.reserve.give_up(storage) {
            written = self.manifest.write(storage);
        }
        if written.is_err() {
            self.manifest.segments = before;
        }
        written
    }

    fn row(&self, number: u64) -> Option<&SegmentRow> {
        self.manifest.segments.iter().find(|row| row.id.number == number)
    }

    /// Removes the index file of a retired segment, unless it is kept for its ids.
    pub(crate) fn remove_index(&self, storage: &dyn Storage, number: u64) -> io::Result<()> {
        if self.manifest.kept_indexes.iter().any(|row| row.number == number) {
            return Ok(());
        }
        remove_if_there(storage, &index_name(number))
    }
}
