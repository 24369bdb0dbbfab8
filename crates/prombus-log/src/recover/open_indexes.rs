//! Opens the index file of every sealed segment, or rebuilds it. Adds entries for lost seqs to the indexes of damaged
//! segments.

use crate::context::Context;
use crate::error::{Fault, FaultKind, OpenError};
use crate::index::Index;
use crate::index_file::{IndexError, IndexFile};
use crate::index_file_write::write_index_file;
use crate::layout::index_name;
use crate::lost_seqs::{OtherSegments, spans_of};
use crate::observer::Notice;
use crate::read::kept_ids::KeptIds;
use crate::rebuild_index::index_segment;
use crate::recover::recovery::{Recovery, UsedSegment};
use crate::segment::{Segment, SegmentIndex};
use crate::storage::{is_full, is_unreadable};
use crate::topics::TopicView;
use crate::write::recent_ids::RecentIds;
use std::sync::Arc;

impl Recovery {
    /// Opens or rebuilds the index file of every sealed segment. Returns the index of the growing segment.
    pub(super) fn open_indexes(
        &mut self,
        used: &mut [UsedSegment],
        topics: &[Option<TopicView>],
        recent_ids: &mut RecentIds,
    ) -> Result<Index, OpenError> {
        let mut active = Index::default();
        for at in 0..used.len() {
            if let Some(mut index) = used[at].index.take() {
                self.cover_lost_seqs(used, at, &mut index, topics)?;
                used[at].index = Some(index);
            }
            let segment = Arc::clone(&used[at].segment);
            let Some(sealed) = segment.sealed() else {
                active = used[at].index.take().unwrap_or_default();
                self.remember_ids(&active, recent_ids);
                continue;
            };
            let opened = match self.open_index(&segment, sealed)? {
                Some(file) => SegmentIndex::File(Arc::new(file)),
                None => {
                    let index = self.index_of(used, at, sealed, topics)?;
                    self.write_index(&segment, sealed, index, recent_ids)?
                }
            };
            segment.set_index(opened);
        }
        Ok(active)
    }

    /// Adds the publishers' ids (event ids that publishers chose) of an index without a file to the ids in memory.
    fn remember_ids(&self, index: &Index, recent_ids: &mut RecentIds) {
        for entry in &index.ids {
            let hash = self.context.hash.of_id(entry.topic, entry.id);
            recent_ids.insert(entry.topic, entry.id, hash, entry.seq);
        }
    }

    /// Opens the index file of a sealed segment; `None` if it must be rebuilt from the segment.
    fn open_index(&mut self, segment: &Segment, sealed: u64) -> Result<Option<IndexFile>, OpenError> {
        let id = segment.id;
        match IndexFile::open(&self.context.storage, id.number, id.salt, sealed) {
            Ok(file) => Ok(Some(file)),
            Err(IndexError::Io(error)) if !is_unreadable(&error) => Err(self.error("read an index", error)),
            Err(IndexError::Damaged { position }) => {
                self.faults.push(Fault::new(index_name(id.number), position, FaultKind::Index));
                Ok(None)
            }
            Err(IndexError::Io(_) | IndexError::Stale) => Ok(None),
        }
    }

    /// Returns the index of a segment: the one that the replay built, or one rebuilt from the frames.
    fn index_of(
        &self,
        used: &mut [UsedSegment],
        at: usize,
        sealed: u64,
        topics: &[Option<TopicView>],
    ) -> Result<Index, OpenError> {
        if let Some(index) = used[at].index.take() {
            return Ok(index);
        }
        let segment = Arc::clone(&used[at].segment);
        let made = index_segment(&segment, sealed, self.context.hash);
        let mut index = made.map_err(|at| self.unreadable(segment.name(), at))?;
        self.cover_lost_seqs(used, at, &mut index, topics)?;
        Ok(index)
    }

    /// Writes an index file. If the disk is full, the index stays in memory.
    fn write_index(
        &self,
        segment: &Segment,
        sealed: u64,
        index: Index,
        recent_ids: &mut RecentIds,
    ) -> Result<SegmentIndex, OpenError> {
        let id = segment.id;
        let Context { storage, hash, .. } = &*self.context;
        match write_index_file(storage, &index, id.number, id.salt, sealed, *hash) {
            Ok(file) => {
                self.notice(&Notice::IndexRebuilt { file: index_name(id.number) });
                Ok(SegmentIndex::File(Arc::new(file)))
            }
            Err(error) if is_full(&error) => {
                self.remember_ids(&index, recent_ids);
                recent_ids.roll(id.number);
                Ok(SegmentIndex::Memory(Arc::new(index)))
            }
            Err(error) => Err(self.error("write an index", error)),
        }
    }

    /// Adds entries for lost seqs to the index of a damaged segment. The seqs follow from those in the other segments.
    fn cover_lost_seqs(
        &self,
        used: &[UsedSegment],
        at: usize,
        index: &mut Index,
        topics: &[Option<TopicView>],
    ) -> Result<(), OpenError> {
        if index.damage.is_empty() {
            return Ok(());
        }
        let mut others = OtherSegments::new(at, topics);
        for (other_at, other) in used.iter().enumerate().filter(|(other_at, _)| *other_at != at) {
            let spans = match &other.index {
                Some(index) => index.spans(),
                None => spans_of(&other.segment, self.context.hash)
                    .map_err(|at| self.unreadable(other.segment.name(), at))?,
            };
            others.add(other_at, &spans);
        }
        others.cover_lost_seqs(index);
        Ok(())
    }

    /// Opens the kept indexes. A damaged one is reported and dropped, because it cannot be rebuilt.
    pub(super) fn open_kept(&mut self) -> Result<Vec<Arc<KeptIds>>, OpenError> {
        let mut kept = Vec::new();
        for row in std::mem::take(&mut self.manifest.kept_indexes) {
            let is_given_up = self.losses.has_kept_index(row.number, row.salt);
            let opened = IndexFile::open_for_ids(&self.context.storage, row.number, row.salt, row.covered);
            // Opening reads only the head and the filters. An accepted loss may be in the ids, so then the whole file
            // is checked.
            let opened =
                opened.and_then(|file| if is_given_up { file.check().map(|()| file) } else { Ok(file) });
            match opened {
                Ok(file) => {
                    self.manifest.kept_indexes.push(row);
                    kept.push(Arc::new(KeptIds { row, file }));
                }
                Err(IndexError::Io(error)) if !(is_given_up && is_unreadable(&error)) => {
                    return Err(self.unreadable(index_name(row.number), error.into()));
                }
                Err(error) => {
                    let position = if let IndexError::Damaged { position } = error { position } else { 0 };
                    self.faults.push(Fault::new(index_name(row.number), position, FaultKind::Index));
                }
            }
        }
        Ok(kept)
    }
}
