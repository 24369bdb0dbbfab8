//! Opens a log: finds the log or creates one, replays the batches after the newest checkpoint, cuts off a torn tail (an
//! unfinished batch at the end), and makes the recovered batches durable before they become visible.
//!
//! Until the new manifest is written, no durable data is changed. So after a crash at any point the next open starts over.

use crate::caller_state::State;
use crate::checkpoint::Checkpoint;
use crate::error::OpenError;
use crate::layout::checkpoint_name;
use crate::manifest::ManifestRead;
use crate::options::Options;
use crate::recover::build_parts::{OpenedLog, Recovered, build_parts};
use crate::recover::find_log::{check_empty, open_error, read_manifest};
use crate::recover::new_log::create;
use crate::recover::recovery::{FoundSegments, Recovery};
use crate::recover::replay::Replay;
use crate::storage::{Lock, Storage, is_unreadable};
use crate::write::recent_ids::RecentIds;
use std::sync::Arc;

/// Opens the log on a storage; see the module documentation.
pub(crate) fn open(
    storage: Arc<dyn Storage>,
    options: Options,
    state: Box<dyn State>,
) -> Result<(OpenedLog, Box<dyn Lock>), OpenError> {
    let folder = storage.location();
    let io = |action: &'static str| {
        let folder = folder.clone();
        move |error| open_error(&folder, action, error)
    };
    // Checked before the lock is taken, so that a folder with other content is not changed, not even by a lock file.
    if let ManifestRead::Missing = read_manifest(&*storage)? {
        check_empty(&*storage)?;
    }
    let lock = storage.lock().map_err(io("lock the folder"))?;
    let lock = lock.ok_or_else(|| OpenError::Locked { folder: folder.clone() })?;
    let found = match read_manifest(&*storage)? {
        ManifestRead::Missing => {
            check_empty(&*storage)?;
            create(&*storage, &options)?
        }
        found => found,
    };
    let ManifestRead::Found { manifest, fault } = found else {
        unreachable!("read_manifest returns missing or found")
    };
    let opened = Recovery::new(storage, options, manifest, fault)?.run(state)?;
    Ok((opened, lock))
}

impl Recovery {
    fn run(mut self, mut state: Box<dyn State>) -> Result<OpenedLog, OpenError> {
        let (checkpoint, number) = self.read_checkpoint()?;
        // A new log has no snapshot to restore.
        if checkpoint.mark.batch > 0 {
            let restored = state.restore(&checkpoint.state);
            restored.map_err(|reason| OpenError::State { file: checkpoint_name(number), reason })?;
        }
        self.check_segments()?;
        let checkpointed = checkpoint.mark;
        let mut replay = Replay::new(&checkpoint, state, self.context.hash);
        let FoundSegments { mut used, prepared, unusable } = self.replay_segments(&mut replay)?;
        self.faults.append(&mut replay.faults);

        let last = used.len();
        for (at, one) in used.iter_mut().enumerate() {
            self.cut(one).map_err(|error| self.error("keep the bytes of a torn tail", error))?;
            self.make_durable(one)?;
            let is_whole = one.torn_to.is_none() && !one.is_damaged && !one.has_holes;
            let is_growing = at + 1 == last && one.segment.sealed().is_none() && is_whole;
            if !is_growing {
                one.segment.seal(one.end);
            }
        }
        let mut recent_ids = RecentIds::default();
        let active_index = self.open_indexes(&mut used, &replay.topics, &mut recent_ids)?;
        let kept = self.open_kept()?;
        let recovered =
            Recovered { replay, checkpointed, used, prepared, unusable, recent_ids, active_index, kept };
        build_parts(self, recovered)
    }

    /// Reads the newest intact checkpoint.
    fn read_checkpoint(&mut self) -> Result<(Checkpoint, u64), OpenError> {
        let [older, newer] = self.manifest.checkpoints;
        // If the newer checkpoint is damaged or unreadable, the older one is used. Only damage is reported.
        let newer_fault = match Checkpoint::read(&*self.context.storage, newer) {
            Ok(Ok(checkpoint)) => return Ok((checkpoint, newer)),
            Ok(Err(fault)) => Ok(fault),
            Err(error) if is_unreadable(&error) && older != newer => Err(error),
            Err(error) => return Err(self.unreadable(checkpoint_name(newer), error.into())),
        };
        let older_read = match Checkpoint::read(&*self.context.storage, older) {
            Err(error) => return Err(self.unreadable(checkpoint_name(older), error.into())),
            Ok(read) => read,
        };
        match older_read {
            Ok(checkpoint) => {
                self.faults.extend(newer_fault.ok());
                // The next checkpoint then replaces the bad one.
                self.manifest.checkpoints = [older, older];
                self.ends_at_checkpoint = false;
                Ok((checkpoint, older))
            }
            Err(older_fault) => match newer_fault {
                Ok(newer_fault) => Err(OpenError::CheckpointsDamaged {
                    newer: Box::new(newer_fault),
                    older: Box::new(older_fault),
                }),
                Err(error) => Err(self.unreadable(checkpoint_name(newer), error.into())),
            },
        }
    }
}
