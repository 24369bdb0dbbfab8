//! Removes segments from the log: first from the manifest, then from the view. After that their files can be recycled.

use crate::layout::SEGMENT_DATA_START;
use crate::maintain::kept_id_files::add_to_manifest;
use crate::maintain::work::Work;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use std::io;
use std::sync::Arc;

/// A change of the log's segments.
pub(crate) struct SegmentChange<'a> {
    /// The segments to remove.
    pub(crate) gone: &'a [Arc<Segment>],
    /// The segments that replace those in `gone`, at the place of the first one.
    pub(crate) replaced_by: &'a [Arc<Segment>],
    /// The publishers' ids (event ids that publishers chose) of the removed events.
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
    /// Removes segments from the manifest, then from the view, and then retires their files.
    pub(crate) fn retire(&mut self, change: &SegmentChange<'_>) -> io::Result<()> {
        let SegmentChange { gone, kept, .. } = change;
        let segments = self.committed.segments();
        let kept_before = self.catalog.manifest.kept_indexes.clone();
        // As soon as this manifest is durable, an open does not use the removed segments. Before that, their files must
        // not be recycled.
        let written = add_to_manifest(&self.context, &mut self.catalog, kept)
            .and_then(|()| self.catalog.write(&*self.context.storage, &change.apply(&segments), gone));
        if written.is_err() {
            self.catalog.manifest.kept_indexes = kept_before;
            return written;
        }
        drop(segments);
        self.committed.change_view(|view| view.segments = Arc::new(change.apply(&view.segments)));
        // The kept ids become visible before the ids of a segment without an index file are removed from memory.
        self.kept_ids.show(&self.committed, kept, &[]);
        let since_ms = self.context.now_ms();
        for segment in *gone {
            if matches!(&*segment.index(), SegmentIndex::Memory(_)) {
                self.queue.forget_ids(segment.id.number);
            }
            segment.close_file();
            self.damaged.remove(&segment.id.number);
            // An empty sealed segment may be one that an open set aside because of unreadable bytes.
            let is_empty = segment.sealed() == Some(SEGMENT_DATA_START);
            let is_unreadable = is_empty
                || segment.has_accepted_losses()
                || self.committed.read_errors.has_file(&segment.name());
            self.retired.add(segment, since_ms, is_unreadable);
        }
        Ok(())
    }

    /// Removes one retired file. Returns false if none is free.
    pub(crate) fn free_one_retired(&mut self) -> io::Result<bool> {
        self.retired.free_one(&self.context, &self.catalog)
    }

    /// Removes retired files until `bytes` fit on the disk. Does nothing if the free space is unknown.
    pub(crate) fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        self.retired.make_room(&self.context, &self.catalog, bytes)
    }
}
