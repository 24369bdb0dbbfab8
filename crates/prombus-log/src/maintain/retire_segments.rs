//! Taking segments out of the log: out of the manifest first, then out of the view; their files can be recycled after that.

use crate::layout::SEGMENT_DATA_START;
use crate::maintain::kept_id_files::name_kept;
use crate::maintain::work::Work;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use std::io;
use std::sync::Arc;

/// A change of the log's segments.
pub(crate) struct SegmentChange<'a> {
    pub(crate) gone: &'a [Arc<Segment>],
    /// Takes the place of the first of them.
    pub(crate) replaced_by: &'a [Arc<Segment>],
    /// The ids of their events.
    pub(crate) kept: &'a [Arc<KeptIds>],
}

impl SegmentChange<'_> {
    /// The segments after the change.
    fn apply(&self, segments: &[Arc<Segment>]) -> Vec<Arc<Segment>> {
        let mut left = Vec::with_capacity(segments.len());
        let mut replacement = Some(self.replaced_by);
        for segment in segments {
            if self.gone.iter().any(|other| other.id.number == segment.id.number) {
                left.extend(replacement.take().unwrap_or_default().iter().cloned());
            } else {
                left.push(Arc::clone(segment));
            }
        }
        left
    }
}

impl Work {
    /// Takes segments out of the log: the manifest first, then the view, then the files.
    pub(crate) fn retire(&mut self, change: &SegmentChange<'_>) -> io::Result<()> {
        let SegmentChange { gone, kept, .. } = change;
        let segments = self.committed.segments();
        let kept_before = self.catalog.manifest.kept_indexes.clone();
        // From here on an open does not find them; only then may the files be recycled.
        let written = name_kept(&self.context, &mut self.catalog, kept)
            .and_then(|()| self.catalog.write(&*self.context.storage, &change.apply(&segments), gone));
        if written.is_err() {
            self.catalog.manifest.kept_indexes = kept_before;
            return written;
        }
        drop(segments);
        self.committed.change_view(|view| view.segments = Arc::new(change.apply(&view.segments)));
        // First the kept ids answer, then memory forgets those of a segment that never got an index file.
        self.kept_ids.show(&self.committed, kept, &[]);
        let since_ms = self.context.now_ms();
        for segment in *gone {
            if matches!(&*segment.index(), SegmentIndex::Memory(_)) {
                self.queue.forget_ids(segment.id.number);
            }
            segment.close_file();
            self.damaged.remove(&segment.id.number);
            // One that was never used may have been set aside by an open because of bytes that could not be read.
            let is_empty = segment.sealed() == Some(SEGMENT_DATA_START);
            let is_unreadable = is_empty
                || segment.has_accepted_losses()
                || self.committed.read_errors.has_file(&segment.name());
            self.retired.add(segment, since_ms, is_unreadable);
        }
        Ok(())
    }

    /// Frees the room of one retired file; false when none is free.
    pub(crate) fn free_one_retired(&mut self) -> io::Result<bool> {
        self.retired.free_one(&self.context, &self.catalog)
    }

    /// Makes sure that there is room, where that can be known.
    pub(crate) fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.retired.make_room(&self.context, &self.catalog, bytes)
    }
}
