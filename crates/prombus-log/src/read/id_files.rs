//! Where publishers' ids are looked up: the index files of segments, and the ids that are kept of events that are gone.

use crate::event_id::EventId;
use crate::index_file::IndexFile;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use parking_lot::RwLock;
use std::sync::Arc;

/// A segment whose index file knows publishers' ids. The ranges stand side by side in memory, because every publish with an
/// id looks at all of them.
#[derive(Clone)]
pub(crate) struct IdFile {
    first: EventId,
    last: EventId,
    has_unordered: bool,
    /// No older segment has a time-ordered id above this one.
    pub(super) last_so_far: EventId,
    pub(super) owner: IdOwner,
}

/// Whose ids they are.
#[derive(Clone)]
pub(super) enum IdOwner {
    Segment {
        file: Arc<IndexFile>,
        segment: Arc<Segment>,
    },
    /// Their events are gone.
    Kept(Arc<KeptIds>),
}

impl IdOwner {
    fn file(&self) -> &IndexFile {
        match self {
            Self::Segment { file, .. } => file,
            Self::Kept(kept) => &kept.file,
        }
    }
}

impl IdFile {
    pub(super) fn may_contain(&self, id: EventId, hash: u64) -> bool {
        let in_range =
            if id.is_time_ordered() { self.first <= id && id <= self.last } else { self.has_unordered };
        in_range && self.owner.file().may_contain_id(hash)
    }
}

/// The list that publishers' ids are looked up in: first what is kept of events that are gone, then the segments.
fn list_id_files(segments: &[Arc<Segment>], kept: &[Arc<KeptIds>], before: &[IdFile]) -> Vec<IdFile> {
    let mut owners: Vec<IdOwner> = kept.iter().cloned().map(IdOwner::Kept).collect();
    for segment in segments {
        let is_same =
            |owner: &IdOwner| matches!(owner, IdOwner::Segment { segment: old, .. } if old.id == segment.id);
        match &*segment.index() {
            SegmentIndex::File(file) => {
                owners.push(IdOwner::Segment { file: Arc::clone(file), segment: Arc::clone(segment) });
            }
            // One whose file is being made again: its old filter still holds, and its index answers from memory.
            _ => owners.extend(before.iter().map(|old| &old.owner).find(|owner| is_same(owner)).cloned()),
        }
    }
    let mut files: Vec<IdFile> = Vec::new();
    let mut last_so_far = EventId::default();
    for owner in owners {
        let summary = *owner.file().summary();
        if summary.first_client_id <= summary.last_client_id || summary.unordered_ids > 0 {
            last_so_far = last_so_far.max(summary.last_client_id);
            files.push(IdFile {
                first: summary.first_client_id,
                last: summary.last_client_id,
                has_unordered: summary.unordered_ids > 0,
                last_so_far,
                owner,
            });
        }
    }
    files
}

/// Publishers' ids outside of the newest segments.
pub(crate) struct PublisherIds {
    /// Ids of events that are gone.
    kept: RwLock<Arc<Vec<Arc<KeptIds>>>>,
    files: RwLock<Arc<Vec<IdFile>>>,
}

impl PublisherIds {
    pub(crate) fn new(segments: &[Arc<Segment>], kept: Vec<Arc<KeptIds>>) -> Self {
        let files = list_id_files(segments, &kept, &[]);
        Self { kept: RwLock::new(Arc::new(kept)), files: RwLock::new(Arc::new(files)) }
    }

    pub(crate) fn files(&self) -> Arc<Vec<IdFile>> {
        Arc::clone(&self.files.read())
    }

    pub(crate) fn kept(&self) -> Arc<Vec<Arc<KeptIds>>> {
        Arc::clone(&self.kept.read())
    }

    /// Lists the files again, after an index file was added or a segment was removed.
    pub(crate) fn refresh(&self, segments: &[Arc<Segment>]) {
        let kept = self.kept();
        let mut files = self.files.write();
        *files = Arc::new(list_id_files(segments, &kept, &files));
    }

    /// Adds kept ids and removes those with these numbers; returns the removed ones.
    pub(crate) fn change_kept(&self, added: &[Arc<KeptIds>], gone: &[u64]) -> Vec<Arc<KeptIds>> {
        let mut list = self.kept.write();
        let (gone, mut kept): (Vec<_>, Vec<_>) =
            list.iter().cloned().partition(|kept| gone.contains(&kept.row.number));
        kept.extend(added.iter().cloned());
        *list = Arc::new(kept);
        gone
    }
}
