//! The state of an open in progress, before the parts of the log exist.

use crate::accepted_losses::Losses;
use crate::context::Context;
use crate::error::{Fault, FaultKind, OpenError};
use crate::index::Index;
use crate::keyed_hash::KeyedHash;
use crate::layout::segment_name;
use crate::manifest::{Manifest, SegmentRow};
use crate::observer::Notice;
use crate::options::Options;
use crate::recover::find_log::{open_error, read_error};
use crate::segment::{self, Segment, SegmentIndex};
use crate::storage::{OpenMode, Storage, is_unreadable};
use crate::unreadable_ranges::UnreadableAt;
use std::io;
use std::sync::Arc;

/// An open in progress.
pub(super) struct Recovery {
    pub(super) context: Arc<Context>,
    pub(super) manifest: Manifest,
    /// Unreadable ranges that count as damaged.
    pub(super) losses: Losses,
    /// The damage that was found.
    pub(super) faults: Vec<Fault>,
    /// Whether the log was closed cleanly and the newest checkpoint is intact. Then no batch follows the checkpoint.
    pub(super) ends_at_checkpoint: bool,
}

/// A prepared segment that is not begun.
pub(super) struct PreparedSegment {
    pub(super) row: SegmentRow,
    pub(super) segment: Arc<Segment>,
}

/// A segment with records.
pub(super) struct UsedSegment {
    pub(super) segment: Arc<Segment>,
    /// The index that the replay built; `None` if the segment was not replayed.
    pub(super) index: Option<Index>,
    /// Where the part after the checkpoint starts.
    pub(super) from: u64,
    /// The end of the last durable batch. Until the segment is replayed: the end of the part to replay.
    pub(super) end: u64,
    /// Where the bytes of an unfinished batch end, if there are any.
    pub(super) torn_to: Option<u64>,
    /// Whether the last batch of the segment is damaged.
    pub(super) is_damaged: bool,
    /// Whether some bytes of the segment cannot be read. Then nothing is appended to it.
    pub(super) has_holes: bool,
}

/// The segments that an open found.
pub(super) struct FoundSegments {
    /// Segments with records, in log order.
    pub(super) used: Vec<UsedSegment>,
    /// Segments without records, ready for use.
    pub(super) prepared: Vec<PreparedSegment>,
    /// Prepared segments with unreadable bytes. They stay in the manifest and are not used.
    pub(super) unusable: Vec<SegmentRow>,
}

impl UsedSegment {
    pub(super) fn new(segment: Arc<Segment>, from: u64, end: u64) -> Self {
        Self { segment, index: None, from, end, torn_to: None, is_damaged: false, has_holes: false }
    }
}

impl FoundSegments {
    /// Adds a segment without records. A segment with accepted losses is not used, because data written to its unreadable
    /// bytes might be lost.
    pub(super) fn add_prepared(&mut self, row: &SegmentRow, segment: Arc<Segment>) {
        if segment.has_accepted_losses() {
            self.unusable.push(*row);
        } else {
            self.prepared.push(PreparedSegment { row: *row, segment });
        }
    }
}

impl Recovery {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        options: Options,
        manifest: Manifest,
        fault: Option<Fault>,
    ) -> Result<Self, OpenError> {
        let mut faults: Vec<Fault> = fault.into_iter().collect();
        let losses = Losses::read_if_readable(&*storage, &mut faults)
            .map_err(|error| open_error(&storage.location(), "read LOSSES", error))?;
        let ends_at_checkpoint = manifest.clean;
        let context = Context::new(storage, options, KeyedHash::new(manifest.hash_seed), manifest.log_id);
        Ok(Self { context, manifest, losses, faults, ends_at_checkpoint })
    }

    /// The error for a file that is needed and cannot be read.
    pub(super) fn unreadable(&self, file: String, at: UnreadableAt) -> OpenError {
        read_error(&*self.context.storage, file, at)
    }

    pub(super) fn error(&self, action: &str, error: io::Error) -> OpenError {
        open_error(&self.context.storage.location(), action, error)
    }

    pub(super) fn notice(&self, notice: &Notice) {
        self.context.options.observer.notice(notice);
    }

    /// Checks that every segment in the manifest exists. An invalid header is reported, and the open continues, because
    /// the manifest repeats the header.
    pub(super) fn check_segments(&mut self) -> Result<(), OpenError> {
        for row in &self.manifest.segments {
            let name = segment_name(row.id.number);
            let file = match self.context.storage.open(&name, OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(OpenError::SegmentMissing {
                        folder: self.context.storage.location(),
                        segment: name,
                    });
                }
                opened => opened.map_err(|error| self.error("open a segment", error))?,
            };
            let length = file.len().map_err(|error| self.error("read a segment", error))?;
            match segment::check_header(&*file, &row.id, self.manifest.log_id) {
                Ok(fault) => self.faults.extend(fault),
                Err(error) if is_unreadable(&error) => {}
                Err(error) => return Err(self.error("read a segment", error)),
            }
            if length < row.sealed.unwrap_or(row.id.capacity) {
                self.faults.push(Fault::new(name, length, FaultKind::SegmentShort));
            }
        }
        Ok(())
    }

    pub(super) fn segment_of(&self, row: &SegmentRow) -> Arc<Segment> {
        let storage = Arc::clone(&self.context.storage);
        let segment = Segment::new(storage, row.id, row.sealed, SegmentIndex::Growing);
        segment.accept_losses(self.losses.of_segment(row.id.number, row.id.salt));
        Arc::new(segment)
    }
}
