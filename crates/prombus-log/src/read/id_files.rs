//! The files in which publishers' ids are looked up: the index files of segments, and kept indexes, whose events were
//! cleaned away.

use crate::event_id::EventId;
use crate::index_file::IndexFile;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use parking_lot::RwLock;
use std::sync::Arc;

/// An index file that contains publishers' ids. The id ranges of all files are adjacent in memory, because a publish
/// with an id may have to compare the id with all of them.
#[derive(Clone)]
pub(crate) struct IdFile {
    /// The lowest time-ordered id (UUIDv7) in the file.
    first: EventId,
    /// The highest time-ordered id in the file.
    last: EventId,
    /// Whether the file contains ids that are not time-ordered.
    has_unordered: bool,
    /// The highest time-ordered id in this file and all earlier ones in the list.
    pub(super) last_so_far: EventId,
    pub(super) owner: IdOwner,
}

/// The origin of the ids in a file.
#[derive(Clone)]
pub(super) enum IdOwner {
    Segment {
        file: Arc<IndexFile>,
        segment: Arc<Segment>,
    },
    /// The events of these ids were cleaned away.
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

/// Lists the files in which publishers' ids are looked up: first the kept indexes, then the segments.
fn list_id_files(segments: &[Arc<Segment>], kept: &[Arc<KeptIds>], before: &[IdFile]) -> Vec<IdFile> {
    let mut owners: Vec<IdOwner> = kept.iter().cloned().map(IdOwner::Kept).collect();
    for segment in segments {
        let is_same =
            |owner: &IdOwner| matches!(owner, IdOwner::Segment { segment: old, .. } if old.id == segment.id);
        match &*segment.index() {
            SegmentIndex::File(file) => {
                owners.push(IdOwner::Segment { file: Arc::clone(file), segment: Arc::clone(segment) });
            }
            // The index file is being rebuilt: the old filter still applies, and lookups use the index in memory.
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

/// The files that contain publishers' ids (event ids that publishers chose). The ids of the newest segments are only in
/// memory (`recent_ids.rs`).
pub(crate) struct PublisherIds {
    /// The kept indexes.
    kept: RwLock<Arc<Vec<Arc<KeptIds>>>>,
    /// The kept indexes and the index files of segments.
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

    /// Adds kept ids and removes those with the numbers in `gone`. Returns the removed ones.
    pub(crate) fn change_kept(&self, added: &[Arc<KeptIds>], gone: &[u64]) -> Vec<Arc<KeptIds>> {
        let mut list = self.kept.write();
        let (gone, mut kept): (Vec<_>, Vec<_>) =
            list.iter().cloned().partition(|kept| gone.contains(&kept.row.number));
        kept.extend(added.iter().cloned());
        *list = Arc::new(kept);
        gone
    }
}
