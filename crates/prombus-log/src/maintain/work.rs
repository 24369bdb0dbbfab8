//! The work under the maintenance lock, done by one thread at a time and off the hot path: preparing segments, writing
//! index files, checkpoints and the manifest. Most other files of this folder implement one kind of work each.

use crate::context::Context;
use crate::maintain::catalog::Catalog;
use crate::maintain::checkpoints::Checkpoints;
use crate::maintain::kept_id_files::KeptIdFiles;
use crate::maintain::recycle_segments::RetiredSegments;
use crate::maintain::shortage::Shortage;
use crate::maintain::write_indexes::{close_old_files, trim_index_cache, write_next_index};
use crate::manifest::Manifest;
use crate::observer::Notice;
use crate::read::committed_log::CommittedLog;
use crate::read::kept_ids::KeptIds;
use crate::segment::{Segment, SegmentIndex};
use crate::step::Step;
use crate::storage::is_full;
use crate::write::append_queue::AppendQueue;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// If more sealed segments than this have no index file, the index files are written before the next segment is prepared.
const UNINDEXED_SEGMENTS_MAX: usize = 2;

/// The state that the maintenance lock guards.
pub(crate) struct Work {
    pub(crate) context: Arc<Context>,
    pub(crate) committed: Arc<CommittedLog>,
    pub(crate) queue: Arc<AppendQueue>,
    pub(crate) catalog: Catalog,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) retired: RetiredSegments,
    /// Kept indexes that were removed from the manifest and whose files are not removed yet.
    pub(super) kept_ids: KeptIdFiles,
    /// Segments in which cleaning found damage. They are not rewritten.
    pub(crate) damaged: HashSet<u64>,
    /// What the disk has no room for.
    pub(super) shortage: Shortage,
    /// Whether the log is closed. Another process may then own the folder.
    pub(super) is_finished: bool,
}

impl Work {
    pub(crate) fn new(
        context: Arc<Context>,
        committed: Arc<CommittedLog>,
        queue: Arc<AppendQueue>,
        manifest: Manifest,
        checkpoints: Checkpoints,
    ) -> Self {
        Self {
            context,
            committed,
            queue,
            catalog: Catalog::new(manifest),
            checkpoints,
            retired: RetiredSegments::default(),
            kept_ids: KeptIdFiles::default(),
            damaged: HashSet::new(),
            shortage: Shortage::default(),
            is_finished: false,
        }
    }

    /// Does the most urgent piece of work.
    pub(crate) fn step(&mut self) -> Step {
        if self.context.failure.get().is_some() || self.is_finished {
            return Step::Stopped;
        }
        let jobs = [
            Self::catch_up,
            Self::prepare_segment,
            Self::write_index,
            Self::checkpoint_if_due,
            Self::hold_reserve_file,
            Self::expire_kept,
            Self::free_retired,
        ];
        for job in jobs {
            match job(self) {
                Ok(Step::Idle) => {}
                Ok(step) => return step,
                Err(error) => {
                    self.context.fail(format!("maintenance: {error}"));
                    return Step::Stopped;
                }
            }
        }
        trim_index_cache(&self.context, &self.committed);
        close_old_files(&self.committed);
        Step::Idle
    }

    /// Called at close: writes index files and a checkpoint, so that the next open has nothing to replay. No work is done
    /// after it.
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
        let finished = (|| {
            while self.write_index()? == Step::Worked {}
            let mark = self.committed.view().mark;
            // The manifest is clean only if the newest checkpoint covers the last batch.
            if mark == self.checkpoints.newest || self.checkpoint()? {
                self.catalog.manifest.clean = true;
                self.write_manifest()?;
            }
            Ok::<(), io::Error>(())
        })();
        match finished {
            Ok(()) => {}
            // Without a new checkpoint, the next open replays the batches after the previous one.
            Err(error) if is_full(&error) => {
                self.context.observer().notice(&Notice::CheckpointFailed { error: error.to_string() });
            }
            Err(error) => self.context.fail(format!("closing: {error}")),
        }
    }

    /// Updates the manifest's list of segments and writes the manifest.
    pub(crate) fn write_manifest(&mut self) -> io::Result<()> {
        let segments = self.committed.segments();
        self.catalog.write(&*self.context.storage, &segments, &[])
    }

    /// Processes a large backlog of index files or checkpoints before the next segment is prepared. Publishers that
    /// need this segment wait meanwhile, so that neither memory nor the time to open after a crash grows without limit.
    fn catch_up(&mut self) -> io::Result<Step> {
        let (segments, since_checkpoint) = {
            let view = self.committed.view();
            (Arc::clone(&view.segments), view.since_checkpoint)
        };
        let in_memory = |segment: &&Arc<Segment>| matches!(&*segment.index(), SegmentIndex::Memory(_));
        if segments.iter().rev().take(UNINDEXED_SEGMENTS_MAX + 1).filter(in_memory).count()
            > UNINDEXED_SEGMENTS_MAX
        {
            return self.write_index();
        }
        if since_checkpoint >= self.context.options.checkpoint_bytes * 2 {
            return self.checkpoint_if_due();
        }
        Ok(Step::Idle)
    }

    /// Writes the index file of the oldest sealed segment without one.
    pub(crate) fn write_index(&mut self) -> io::Result<Step> {
        write_next_index(&self.context, &self.committed, &self.queue)
    }

    /// Writes a checkpoint of the present state. Returns false if the disk had no room.
    pub(crate) fn checkpoint(&mut self) -> io::Result<bool> {
        self.checkpoints.write(&self.context, &self.committed, &mut self.catalog)
    }

    fn checkpoint_if_due(&mut self) -> io::Result<Step> {
        if self.committed.view().since_checkpoint < self.context.options.checkpoint_bytes {
            return Ok(Step::Idle);
        }
        self.checkpoint()?;
        Ok(Step::Worked)
    }

    /// The number of segments, from the oldest on, that both checkpoints cover.
    pub(crate) fn covered(&mut self) -> usize {
        self.checkpoints.covered(&self.context, &self.committed, &self.catalog)
    }

    fn expire_kept(&mut self) -> io::Result<Step> {
        self.kept_ids.expire(&self.context, &self.committed, &mut self.catalog)
    }

    /// Adds kept ids, and removes those with the numbers in `gone`.
    pub(crate) fn change_kept(&mut self, added: &[Arc<KeptIds>], gone: &[u64]) -> io::Result<()> {
        self.kept_ids.change(&self.context, &self.committed, &mut self.catalog, added, gone)
    }

    fn free_retired(&mut self) -> io::Result<Step> {
        self.retired.free_surplus(&self.context, &self.catalog)
    }

    /// Creates the reserve file if it is missing and there is room.
    fn hold_reserve_file(&mut self) -> io::Result<Step> {
        if self.shortage.is_full {
            return Ok(Step::Idle);
        }
        let least = self.context.options.reserve_bytes;
        self.catalog.reserve.hold(&*self.context.storage, least, self.checkpoints.file_bytes)
    }
}
