//! The files of retired segments. They are kept for recycling while publishing needs new segments, and removed otherwise.

use crate::context::Context;
use crate::layout::segment_name;
use crate::maintain::catalog::Catalog;
use crate::segment::{Segment, SegmentId};
use crate::step::Step;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Disk space that must stay free for the manifest, checkpoints and indexes when a segment is created.
pub(crate) const FREE_MARGIN_BYTES: u64 = 8 << 20;
/// The maximum number of retired files that are kept for recycling.
const RETIRED_FILES_MAX: usize = 8;
/// This many usable files are kept even if none is recycled for a long time.
const RETIRED_FILES_KEPT: usize = 1;
/// Usable files above [`RETIRED_FILES_KEPT`] are removed after this time without recycling.
const REST_MS: i64 = 4_000;
/// Such removals are at least this far apart, because removing a large file keeps the disk busy.
const GIVE_BACK_MS: i64 = 1_000;

/// A segment that the manifest does not list. Its file and its index can be recycled or removed as soon as nothing else
/// holds the segment.
struct RetiredFile {
    segment: Arc<Segment>,
    /// When the segment was retired.
    since_ms: i64,
    /// Whether some of its bytes could not be read. Such a file is not recycled.
    is_unreadable: bool,
}

impl RetiredFile {
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.segment) == 1
    }

    /// Whether the file can be recycled.
    fn is_usable(&self) -> bool {
        self.is_free() && !self.is_unreadable
    }
}

/// The files of retired segments.
pub(crate) struct RetiredSegments {
    files: Vec<RetiredFile>,
    /// When a retired file was last recycled.
    used_ms: i64,
    /// When a retired file was last removed.
    freed_ms: i64,
}

impl Default for RetiredSegments {
    fn default() -> Self {
        Self { files: Vec::new(), used_ms: i64::MIN / 2, freed_ms: i64::MIN / 2 }
    }
}

impl RetiredSegments {
    /// Adds a segment that was removed from the manifest. With `is_unreadable` its file is not recycled.
    pub(crate) fn add(&mut self, segment: &Arc<Segment>, since_ms: i64, is_unreadable: bool) {
        self.files.push(RetiredFile { segment: Arc::clone(segment), since_ms, is_unreadable });
    }

    /// Takes a free file of the right size, to be recycled.
    pub(crate) fn take(
        &mut self,
        context: &Context,
        catalog: &Catalog,
        capacity: u64,
    ) -> io::Result<Option<SegmentId>> {
        if !context.storage.recycles_segments() {
            return Ok(None);
        }
        let is_fit = |file: &RetiredFile| file.segment.id.capacity == capacity && file.is_usable();
        let Some(at) = self.files.iter().position(is_fit) else { return Ok(None) };
        let id = self.files.swap_remove(at).segment.id;
        catalog.remove_index(&*context.storage, id.number)?;
        self.used_ms = context.now_ms();
        Ok(Some(id))
    }

    /// The size of the largest file that [`take`](Self::take) could return and whose size is in `range`.
    pub(crate) fn largest(&self, context: &Context, range: RangeInclusive<u64>) -> Option<u64> {
        let usable = self.files.iter().filter(|file| file.is_usable()).map(|file| file.segment.id.capacity);
        usable.filter(|bytes| context.storage.recycles_segments() && range.contains(bytes)).max()
    }

    /// Removes one retired file if there are more than the next segments need, or if it cannot be recycled.
    pub(crate) fn free_surplus(&mut self, context: &Context, catalog: &Catalog) -> io::Result<Step> {
        let now_ms = context.now_ms();
        self.used_ms = self.used_ms.min(now_ms);
        self.freed_ms = self.freed_ms.min(now_ms);
        let (used_ms, freed_ms, count) = (self.used_ms, self.freed_ms, self.files.len());
        let recycles = context.storage.recycles_segments();
        let at = self.files.iter_mut().position(|file| {
            file.since_ms = file.since_ms.min(now_ms);
            let has_rested = now_ms - file.since_ms.max(used_ms) >= REST_MS
                && now_ms - freed_ms >= GIVE_BACK_MS
                && count > RETIRED_FILES_KEPT;
            let is_fitting = file.segment.id.capacity == context.options.segment_bytes;
            let is_usable = recycles && is_fitting && !file.is_unreadable;
            file.is_free() && (!is_usable || has_rested || count > RETIRED_FILES_MAX)
        });
        let Some(at) = at else { return Ok(Step::Idle) };
        self.free(context, catalog, at)?;
        if count <= RETIRED_FILES_MAX {
            self.freed_ms = now_ms;
        }
        Ok(Step::Worked)
    }

    fn free(&mut self, context: &Context, catalog: &Catalog, at: usize) -> io::Result<()> {
        let number = self.files.swap_remove(at).segment.id.number;
        catalog.remove_index(&*context.storage, number)?;
        context.storage.remove(&segment_name(number))
    }

    /// Removes one retired file. Returns false if none is free.
    pub(crate) fn free_one(&mut self, context: &Context, catalog: &Catalog) -> io::Result<bool> {
        let Some(at) = self.files.iter().position(RetiredFile::is_free) else { return Ok(false) };
        self.free(context, catalog, at)?;
        Ok(true)
    }

    /// Removes retired files until `bytes` fit on the disk. Does nothing if the free space is unknown.
    pub(crate) fn make_room(&mut self, context: &Context, catalog: &Catalog, bytes: u64) -> io::Result<()> {
        let is_tight = |free| free < bytes + FREE_MARGIN_BYTES;
        while context.storage.free_bytes().is_some_and(is_tight) {
            if !self.free_one(context, catalog)? {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "not enough free space to clean"));
            }
        }
        Ok(())
    }
}
