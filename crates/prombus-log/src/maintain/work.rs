//! Work off the hot path, by one thread at a time: preparing segments ahead of need, writing the index of sealed ones,
//! checkpoints, and the manifest that names them all. The other files of this folder have one kind of work each.

use crate::context::Context;
use crate::maintain::catalog::Catalog;
use crate::maintain::checkpoints::Checkpoints;
use crate::maintain::kept_id_files::KeptIdFiles;
use crate::maintain::recycle_segments::RetiredSegments;
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

/// More sealed segments than this do not wait for their index file before the next segment is made.
const UNINDEXED_SEGMENTS_MAX: usize = 2;

/// What the holder of the maintenance lock knows.
pub(crate) struct Work {
    pub(crate) context: Arc<Context>,
    pub(crate) committed: Arc<CommittedLog>,
    pub(crate) queue: Arc<AppendQueue>,
    pub(crate) catalog: Catalog,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) retired: RetiredSegments,
    pub(super) kept_ids: KeptIdFiles,
    /// Segments in which cleaning found damage: it leaves them as they are.
    pub(crate) damaged: HashSet<u64>,
    /// The last try to make a segment found no room.
    pub(super) is_full: bool,
    /// The log is closed: the folder may belong to someone else now.
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
            is_full: false,
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
                    self.context.fail(format!("housekeeping: {error}"));
                    return Step::Stopped;
                }
            }
        }
        trim_index_cache(&self.context, &self.committed);
        close_old_files(&self.committed);
        Step::Idle
    }

    /// At close: what a later open would otherwise have to do. Nothing is done any more after it.
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
        let finished = (|| {
            while self.write_index()? == Step::Worked {}
            let mark = self.committed.view().mark;
            // Only a checkpoint of the very last batch may be called the end of the log.
            if mark == self.checkpoints.newest || self.checkpoint()? {
                self.catalog.manifest.clean = true;
                self.write_manifest()?;
            }
            Ok::<(), io::Error>(())
        })();
        match finished {
            Ok(()) => {}
            // The next open replays instead.
            Err(error) if is_full(&error) => {
                self.context.observer().notice(&Notice::CheckpointFailed { error: error.to_string() });
            }
            Err(error) => self.context.fail(format!("closing: {error}")),
        }
    }

    /// Brings the manifest's segments up to date and writes it.
    pub(crate) fn write_manifest(&mut self) -> io::Result<()> {
        let segments = self.committed.segments();
        self.catalog.write(&*self.context.storage, &segments, &[])
    }

    /// A large backlog is worked off before the next segment is made: publishers then wait for it, and neither memory nor the
    /// time to open after a crash grows with it.
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

    /// Writes a checkpoint as of now. False when the disk had no room.
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

    /// How many segments, from the oldest on, lie before both checkpoints.
    pub(crate) fn covered(&mut self) -> usize {
        self.checkpoints.covered(&self.context, &self.committed, &self.catalog)
    }

    fn expire_kept(&mut self) -> io::Result<Step> {
        self.kept_ids.expire(&self.context, &self.committed, &mut self.catalog)
    }

    /// Adds ids of events that are gone and removes others.
    pub(crate) fn change_kept(&mut self, added: &[Arc<KeptIds>], gone: &[u64]) -> io::Result<()> {
        self.kept_ids.change(&self.context, &self.committed, &mut self.catalog, added, gone)
    }

    fn free_retired(&mut self) -> io::Result<Step> {
        self.retired.free_surplus(&self.context, &self.catalog)
    }

    /// Keeps the reserve file, while there is room for it.
    fn hold_reserve_file(&mut self) -> io::Result<Step> {
        if self.is_full {
            return Ok(Step::Idle);
        }
        let least = self.context.options.reserve_bytes;
        self.catalog.reserve.hold(&*self.context.storage, least, self.checkpoints.file_bytes)
    }
}
