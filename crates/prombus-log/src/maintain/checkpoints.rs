//! Writes checkpoints, and determines which segments they cover.

use crate::caller_state::State;
use crate::checkpoint::{Checkpoint, Mark};
use crate::context::Context;
use crate::fields::u32_at;
use crate::layout::checkpoint_name;
use crate::maintain::catalog::Catalog;
use crate::observer::Notice;
use crate::read::committed_log::CommittedLog;
use crate::record::{HEADER_BYTES, trusted_frame_length};
use crate::storage::is_full;
use bytes::Bytes;
use std::io;

/// The two checkpoints in the manifest, and the caller's state for the next one.
pub(crate) struct Checkpoints {
    /// The caller's state, as of the last attempt to write a checkpoint.
    state: Box<dyn State>,
    /// The mark of the newest checkpoint: the end of the last batch that it covers.
    pub(crate) newest: Mark,
    /// The mark of the older checkpoint; `None` while it is unknown.
    older: Option<Mark>,
    /// The length of the newest checkpoint file.
    pub(super) file_bytes: u64,
    /// Whether the last attempt to write a checkpoint found no room. Only the first of several such attempts is
    /// reported.
    has_failed: bool,
}

impl Checkpoints {
    pub(crate) fn new(state: Box<dyn State>, newest: Mark) -> Self {
        Self { state, newest, older: None, file_bytes: 0, has_failed: false }
    }

    /// Applies state records, and snapshots the state.
    fn apply_records(&mut self, records: &[Bytes], snapshot: &mut Vec<u8>) {
        for frames in records {
            let mut rest = &frames[..];
            while !rest.is_empty() {
                let (frame, remaining) = rest.split_at(trusted_frame_length(rest));
                self.state.apply(u32_at(frame, 20), &frame[HEADER_BYTES..]);
                rest = remaining;
            }
        }
        self.state.snapshot(snapshot);
    }

    /// Writes a checkpoint of the present state. Returns false if the disk had no room. Then the newest checkpoint
    /// stays, but the older one may have been removed to make room.
    pub(crate) fn write(
        &mut self,
        context: &Context,
        committed: &CommittedLog,
        catalog: &mut Catalog,
    ) -> io::Result<bool> {
        let (mut checkpoint, records) = committed.change_view(|view| {
            view.since_checkpoint = 0;
            (view.checkpoint(), std::mem::take(&mut view.state_records))
        });
        self.apply_records(&records, &mut checkpoint.state);
        let number = catalog.next_number();
        let mark = checkpoint.mark;
        let mut written = checkpoint.write(&*context.storage, number);
        self.file_bytes = checkpoint.file_bytes();
        if written.as_ref().is_err_and(is_full) && catalog.reserve.give_up(&*context.storage) {
            written = checkpoint.write(&*context.storage, number);
        }
        if written.as_ref().is_err_and(is_full) && self.give_up_older(context, committed, catalog)? {
            written = checkpoint.write(&*context.storage, number);
        }
        let [older, newer] = catalog.manifest.checkpoints;
        let written = written.and_then(|()| {
            catalog.manifest.checkpoints = [newer, number];
            catalog.write(&*context.storage, &committed.segments(), &[])
        });
        match written {
            Ok(()) => {
                self.has_failed = false;
                self.older = Some(std::mem::replace(&mut self.newest, mark));
                if older != newer {
                    // After a crash at this point, the next open removes the file.
                    let _ = context.storage.remove(&checkpoint_name(older));
                }
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                catalog.manifest.checkpoints = [older, newer];
                let _ = context.storage.remove(&checkpoint_name(number));
                if !std::mem::replace(&mut self.has_failed, true) {
                    context.observer().notice(&Notice::CheckpointFailed { error: error.to_string() });
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes room for a checkpoint on a full disk by removing the older of the two. Returns false if there is only one, or
    /// no room for the manifest.
    fn give_up_older(
        &mut self,
        context: &Context,
        committed: &CommittedLog,
        catalog: &mut Catalog,
    ) -> io::Result<bool> {
        let [older, newer] = catalog.manifest.checkpoints;
        if older == newer {
            return Ok(false);
        }
        // The checkpoint is removed from the manifest first. If a crash comes before its file is removed, the next open
        // removes the file.
        catalog.manifest.checkpoints = [newer, newer];
        match catalog.write(&*context.storage, &committed.segments(), &[]) {
            Ok(()) => {}
            Err(error) => {
                catalog.manifest.checkpoints = [older, newer];
                return if is_full(&error) { Ok(false) } else { Err(error) };
            }
        }
        self.older = Some(self.newest);
        let _ = context.storage.remove(&checkpoint_name(older));
        Ok(true)
    }

    /// The number of segments, from the oldest on, that both checkpoints cover.
    pub(crate) fn covered(
        &mut self,
        context: &Context,
        committed: &CommittedLog,
        catalog: &Catalog,
    ) -> usize {
        let [older, newer] = catalog.manifest.checkpoints;
        if self.older.is_none() {
            self.older = if older == newer {
                Some(self.newest)
            } else {
                // A damaged or unreadable checkpoint covers nothing. Writing two new checkpoints replaces it.
                let read = Checkpoint::read(&*context.storage, older);
                read.ok().and_then(Result::ok).map(|checkpoint| checkpoint.mark)
            };
        }
        let Some(mark) = self.older else { return 0 };
        let segments = committed.segments();
        segments.iter().position(|segment| segment.id.number == mark.segment).unwrap_or(0)
    }
}
