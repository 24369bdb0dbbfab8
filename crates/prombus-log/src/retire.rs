//! Taking segments out of the log, and what becomes of their files: used again while publishing is fast, else given back.

use crate::commit::Step;
use crate::housekeeping::{FREE_MARGIN_BYTES, Housekeeper};
use crate::kept_ids::KeptIds;
use crate::layout::{SEGMENT_DATA_START, index_name, segment_name};
use crate::log::Shared;
use crate::segment::{Segment, SegmentId, SegmentIndex};
use std::io;
use std::sync::Arc;

/// Retired files that wait to be used again.
const RETIRED_FILES_MAX: usize = 8;
/// So many stay for good.
const RETIRED_FILES_KEPT: usize = 1;
/// After this time without use the others are given back,
const REST_MS: i64 = 4_000;
/// one in this time: to free a large file costs the disk a moment.
const GIVE_BACK_MS: i64 = 1_000;

/// A segment that the manifest no longer names. Its file, and its index, are used by nobody when nobody else holds it.
pub(crate) struct RetiredFile {
    pub(crate) segment: Arc<Segment>,
    since_ms: i64,
    /// Some of its bytes could not be read: nothing is written there again.
    is_unreadable: bool,
}

impl RetiredFile {
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.segment) == 1
    }
}

/// A change of the log's segments.
pub(crate) struct Change<'a> {
    pub(crate) gone: &'a [Arc<Segment>],
    /// What stands in the place of the first of them.
    pub(crate) replaced_by: &'a [Arc<Segment>],
    /// The ids of what is gone.
    pub(crate) kept: &'a [Arc<KeptIds>],
}

impl Housekeeper {
    /// Takes segments out of the log: the manifest first, then the view, then the files.
    pub(crate) fn retire(&mut self, shared: &Shared, change: &Change<'_>) -> io::Result<()> {
        let Change { gone, replaced_by, kept } = change;
        let without = |segments: &[Arc<Segment>]| {
            let mut left = Vec::with_capacity(segments.len());
            let mut replacement = Some(*replaced_by);
            for segment in segments {
                if gone.iter().any(|other| other.id.number == segment.id.number) {
                    left.extend(replacement.take().unwrap_or_default().iter().cloned());
                } else {
                    left.push(Arc::clone(segment));
                }
            }
            left
        };
        let segments = Arc::clone(&shared.view.read().segments);
        let kept_before = self.manifest.kept_indexes.clone();
        // After a crash nobody finds them any more; only then may the files get another life.
        let written = self
            .name_kept(shared, kept)
            .and_then(|()| self.write_manifest_of(shared, &without(&segments), gone));
        if written.is_err() {
            self.manifest.kept_indexes = kept_before;
            return written;
        }
        drop(segments);
        {
            let mut view = shared.view.write();
            view.segments = Arc::new(without(&view.segments));
        }
        // First the kept ids answer, then memory forgets those of a segment that never got an index file.
        self.show_kept(shared, kept, &[]);
        let since_ms = shared.options.clock.now_ms();
        for segment in *gone {
            if matches!(&*segment.index.read(), SegmentIndex::Memory(_)) {
                forget_ids(shared, segment.id.number);
            }
            segment.close_file();
            self.damaged.remove(&segment.id.number);
            // One that was never used may have been set aside by an open because of bytes that could not be read.
            let is_empty = segment.sealed() == Some(SEGMENT_DATA_START);
            let is_unreadable =
                is_empty || segment.has_accepted_losses() || shared.unreadable.has_file(&segment.name());
            self.retired.push(RetiredFile { segment: Arc::clone(segment), since_ms, is_unreadable });
        }
        Ok(())
    }

    /// A retired file of the right size that nobody reads any more.
    pub(crate) fn take_retired(&mut self, shared: &Shared, capacity: u64) -> io::Result<Option<SegmentId>> {
        let is_fit = |file: &RetiredFile| {
            file.segment.id.capacity == capacity && file.is_free() && !file.is_unreadable
        };
        let Some(at) = self.retired.iter().position(is_fit) else { return Ok(None) };
        let id = self.retired.swap_remove(at).segment.id;
        self.remove_index(shared, id.number)?;
        self.retired_used_ms = shared.options.clock.now_ms();
        Ok(Some(id))
    }

    /// Gives the room of retired files back that are more than the next segments need.
    pub(crate) fn free_retired(&mut self, shared: &Shared) -> io::Result<Step> {
        let now_ms = shared.options.clock.now_ms();
        self.retired_used_ms = self.retired_used_ms.min(now_ms);
        self.retired_freed_ms = self.retired_freed_ms.min(now_ms);
        let (used_ms, freed_ms, count) = (self.retired_used_ms, self.retired_freed_ms, self.retired.len());
        let at = self.retired.iter_mut().position(|file| {
            file.since_ms = file.since_ms.min(now_ms);
            let has_rested = now_ms - file.since_ms.max(used_ms) >= REST_MS
                && now_ms - freed_ms >= GIVE_BACK_MS
                && count > RETIRED_FILES_KEPT;
            let is_usable = file.segment.id.capacity == shared.options.segment_bytes && !file.is_unreadable;
            file.is_free() && (!is_usable || has_rested || count > RETIRED_FILES_MAX)
        });
        let Some(at) = at else { return Ok(Step::Idle) };
        self.free(shared, at)?;
        if count <= RETIRED_FILES_MAX {
            self.retired_freed_ms = now_ms;
        }
        Ok(Step::Worked)
    }

    fn free(&mut self, shared: &Shared, at: usize) -> io::Result<()> {
        let number = self.retired.swap_remove(at).segment.id.number;
        self.remove_index(shared, number)?;
        shared.storage.remove(&segment_name(number))
    }

    /// Frees the room of one retired file; false when there is none that nobody reads.
    pub(crate) fn free_one_retired(&mut self, shared: &Shared) -> io::Result<bool> {
        let Some(at) = self.retired.iter().position(RetiredFile::is_free) else { return Ok(false) };
        self.free(shared, at)?;
        Ok(true)
    }

    /// Makes sure that there is room, where that can be known.
    pub(crate) fn make_room(&mut self, shared: &Shared, bytes: u64) -> io::Result<()> {
        let is_tight = |free| free < bytes + FREE_MARGIN_BYTES;
        while shared.storage.free_bytes().is_some_and(is_tight) {
            if !self.free_one_retired(shared)? {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "not enough free space to clean"));
            }
        }
        Ok(())
    }

    /// Removes the index file of a segment that is gone, unless it is kept for its ids.
    pub(crate) fn remove_index(&self, shared: &Shared, number: u64) -> io::Result<()> {
        if self.manifest.kept_indexes.iter().any(|row| row.number == number) {
            return Ok(());
        }
        match shared.storage.remove(&index_name(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A segment's ids are answered for by a file now, or by nobody: memory forgets them.
pub(crate) fn forget_ids(shared: &Shared, segment: u64) {
    let forgotten = {
        let mut state = shared.append.lock();
        let forgotten = state.recent_ids.forget(segment);
        shared.forgotten_ids.store(state.recent_ids.forgotten(), std::sync::atomic::Ordering::Release);
        forgotten
    };
    if let Some(mut table) = forgotten {
        table.clear();
        shared.append.lock().recent_ids.reuse(table);
    }
}
