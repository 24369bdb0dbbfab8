//! The last steps of an open: writes the new manifest, and creates the parts of the open log.

use crate::checkpoint::Mark;
use crate::context::Context;
use crate::error::OpenError;
use crate::index::Index;
use crate::layout::{FileKind, RESERVE, SEGMENT_DATA_START, file_kind};
use crate::maintain::checkpoints::Checkpoints;
use crate::maintain::maintenance::Maintenance;
use crate::maintain::work::Work;
use crate::manifest::{Manifest, SegmentRow};
use crate::observer::Notice;
use crate::read::committed_log::CommittedLog;
use crate::read::damage_reports::ReportedFaults;
use crate::read::kept_ids::KeptIds;
use crate::read::tail::Tail;
use crate::read::view::View;
use crate::recover::find_log::open_error;
use crate::recover::recovery::{PreparedSegment, Recovery, UsedSegment};
use crate::recover::replay::Replay;
use crate::server_ids::IdMaker;
use crate::storage::is_full;
use crate::write::append_queue::AppendQueue;
use crate::write::append_state::{AppendPlace, AppendState, SpareSegment, TopicAppend};
use crate::write::pending_batch::PendingBatch;
use crate::write::recent_ids::RecentIds;
use crate::write::writer::Writer;
use std::sync::Arc;

/// The parts of an open log.
pub(crate) struct OpenedLog {
    pub(crate) context: Arc<Context>,
    pub(crate) committed: Arc<CommittedLog>,
    pub(crate) queue: Arc<AppendQueue>,
    pub(crate) writer: Writer,
    pub(crate) maintenance: Maintenance,
}

/// The state of the log as recovered by an open.
pub(super) struct Recovered {
    pub(super) replay: Replay,
    /// The mark of the newest checkpoint.
    pub(super) checkpointed: Mark,
    /// See [`FoundSegments`](super::recovery::FoundSegments).
    pub(super) used: Vec<UsedSegment>,
    /// See [`FoundSegments`](super::recovery::FoundSegments).
    pub(super) prepared: Vec<PreparedSegment>,
    /// See [`FoundSegments`](super::recovery::FoundSegments).
    pub(super) unusable: Vec<SegmentRow>,
    /// Publishers' ids that are not in an index file.
    pub(super) recent_ids: RecentIds,
    /// The index of the growing segment.
    pub(super) active_index: Index,
    /// The kept indexes.
    pub(super) kept: Vec<Arc<KeptIds>>,
}

/// Writes the manifest and creates the parts.
pub(super) fn build_parts(mut recovery: Recovery, mut found: Recovered) -> Result<OpenedLog, OpenError> {
    let options = &recovery.context.options;
    // A prepared segment that the options do not allow any more is removed with the leftovers.
    found.prepared.retain(|PreparedSegment { row, .. }| match row.reserve {
        true => row.id.capacity == options.reserve_bytes,
        false => row.id.capacity <= options.segment_bytes,
    });
    let place = found.append_place(&recovery.manifest);
    recovery.manifest.segments = found.rows(&recovery.manifest);
    recovery.write_manifest()?;
    recovery.remove_leftovers();

    let Recovery { context, manifest, losses, faults, .. } = recovery;
    let segment = found.active().map(|one| Arc::clone(&one.segment));
    let append = found.take_append_state(&context, place);
    let view = found.take_view(context.options.tail_bytes);
    let mut reported = ReportedFaults::default();
    for fault in faults {
        if reported.add(&fault) {
            context.observer().notice(&Notice::Damaged(fault));
        }
    }
    let committed = Arc::new(CommittedLog::new(Arc::clone(&context), view, found.kept, reported));
    let queue = Arc::new(AppendQueue::new(Arc::clone(&context), append));
    let writer = Writer::new(Arc::clone(&context), Arc::clone(&committed), Arc::clone(&queue), segment);
    let checkpoints = Checkpoints::new(found.replay.state, found.checkpointed);
    let work =
        Work::new(Arc::clone(&context), Arc::clone(&committed), Arc::clone(&queue), manifest, checkpoints);
    let maintenance = Maintenance::new(work, losses);
    Ok(OpenedLog { context, committed, queue, writer, maintenance })
}

impl Recovered {
    /// The segment for the next batch, if there is one.
    fn active(&self) -> Option<&UsedSegment> {
        self.used.last().filter(|one| one.segment.sealed().is_none())
    }

    fn append_place(&self, manifest: &Manifest) -> AppendPlace {
        let Some(one) = self.active() else {
            return AppendPlace { segment: 0, salt: 0, capacity: 0, remaining: 0, is_reserve: false };
        };
        let id = one.segment.id;
        let is_reserve = manifest.segments.iter().any(|row| row.id == id && row.reserve);
        let remaining = id.capacity - one.end;
        AppendPlace { segment: id.number, salt: id.salt, capacity: id.capacity, remaining, is_reserve }
    }

    /// The segments of the new manifest.
    fn rows(&self, manifest: &Manifest) -> Vec<SegmentRow> {
        let row_of = |one: &UsedSegment| {
            let reserve = manifest.segments.iter().any(|row| row.id == one.segment.id && row.reserve);
            SegmentRow { id: one.segment.id, sealed: one.segment.sealed(), reserve }
        };
        let mut rows: Vec<SegmentRow> = self.used.iter().map(row_of).collect();
        rows.extend(self.prepared.iter().map(|prepared| prepared.row));
        // An unusable segment is sealed as empty. Otherwise a later open that can read all of it might take the
        // leftovers of a torn batch for a durable one.
        rows.extend(self.unusable.iter().map(|row| SegmentRow { sealed: Some(SEGMENT_DATA_START), ..*row }));
        rows
    }

    fn mark(&self) -> Mark {
        let mut mark = self.replay.mark;
        if let Some(one) = self.active() {
            (mark.segment, mark.position) = (one.segment.id.number, one.end);
        }
        mark
    }

    fn take_append_state(&mut self, context: &Context, place: AppendPlace) -> AppendState {
        let topics = self.replay.topics.iter().map(|topic| match topic {
            Some(topic) => TopicAppend::new(topic.last_seq, topic.is_deleted),
            None => TopicAppend::new(0, true),
        });
        let spares = std::mem::take(&mut self.prepared).into_iter();
        AppendState {
            pending: PendingBatch::new(self.replay.mark.batch + 1),
            topics: topics.collect(),
            ids: IdMaker::new(self.replay.last_server_id, context.storage.random(), context.hash),
            // Later than every durable commit time, so that a time that was complete before the restart stays complete.
            last_commit_ms: self.replay.last_commit_ms.saturating_add(1),
            recent_ids: std::mem::take(&mut self.recent_ids),
            place,
            spares: spares
                .map(|PreparedSegment { row, segment }| SpareSegment { segment, is_reserve: row.reserve })
                .collect(),
            passed_over: Vec::new(),
            needed_room: 0,
            refused_room: 0,
            is_full: false,
            is_closed: false,
        }
    }

    fn take_view(&mut self, tail_bytes: usize) -> View {
        View {
            tail: Tail::new(tail_bytes),
            segments: Arc::new(self.used.iter().map(|one| Arc::clone(&one.segment)).collect()),
            active_index: std::mem::take(&mut self.active_index),
            mark: self.mark(),
            topics: std::mem::take(&mut self.replay.topics),
            last_server_id: self.replay.last_server_id,
            last_commit_ms: self.replay.last_commit_ms,
            state_records: Vec::new(),
            since_checkpoint: self.used.iter().map(|one| one.end.saturating_sub(one.from)).sum(),
        }
    }
}

impl Recovery {
    fn write_manifest(&mut self) -> Result<(), OpenError> {
        let storage = &*self.context.storage;
        self.manifest.clean = false;
        self.manifest.generation += 1;
        let mut written = self.manifest.write(storage);
        if written.as_ref().is_err_and(is_full) && storage.remove(RESERVE).is_ok() {
            written = self.manifest.write(storage);
        }
        written.map_err(|source| {
            let folder = storage.location();
            if is_full(&source) {
                return OpenError::Full { folder, needed_bytes: 1 << 20, source };
            }
            open_error(&folder, "write the MANIFEST", source)
        })
    }

    /// Removes the files that an interrupted step left behind and that the manifest does not list.
    fn remove_leftovers(&self) {
        let named = |number: u64| self.manifest.segments.iter().any(|row| row.id.number == number);
        let kept = |number: u64| self.manifest.kept_indexes.iter().any(|kept| kept.number == number);
        for name in self.context.storage.list().unwrap_or_default() {
            let is_leftover = match file_kind(&name) {
                Some(FileKind::Segment(number)) => !named(number),
                Some(FileKind::Index(number)) => !named(number) && !kept(number),
                Some(FileKind::Checkpoint(number)) => !self.manifest.checkpoints.contains(&number),
                Some(
                    FileKind::ManifestNew | FileKind::IndexNew | FileKind::LossesNew | FileKind::ReserveNew,
                ) => true,
                Some(FileKind::Manifest | FileKind::Lock | FileKind::Reserve | FileKind::Losses) => false,
                Some(FileKind::Cut) | None => false,
            };
            if is_leftover {
                // An error does no harm: the next open tries again.
                let _ = self.context.storage.remove(&name);
            }
        }
    }
}
