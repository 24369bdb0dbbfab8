//! Finds the segments with records, in log order, and replays the batches after the checkpoint.

use crate::checkpoint::Mark;
use crate::error::{Fault, FaultKind, OpenError};
use crate::frame_scan::end_of_nonzero;
use crate::index::Index;
use crate::layout::{SEGMENT_DATA_START, checkpoint_name, segment_name};
use crate::rebuild_index::index_segment;
use crate::recover::begun_segments::{self, Begun, BegunSegment, in_log_order};
use crate::recover::recovery::{FoundSegments, Recovery, UsedSegment};
use crate::recover::replay::Replay;
use crate::recover::replay_batches::{Proof, SegmentEnd};
use crate::segment::SegmentKind;
use crate::unreadable_ranges::UnreadableAt;
use std::io;

impl Recovery {
    /// Replays everything after the checkpoint.
    pub(super) fn replay_segments(&mut self, replay: &mut Replay) -> Result<FoundSegments, OpenError> {
        let is_clean = self.manifest.clean;
        let mark_at = self.find_mark(replay.mark)?;
        let mut found = self.find_segments(replay.mark, mark_at)?;
        let last = found.used.len();
        replay.begin_at_mark();
        for (at, one) in found.used.iter_mut().enumerate() {
            let sealed = one.segment.sealed();
            if sealed.is_some() && one.from == one.end {
                // The checkpoint covers all of its batches, so there is nothing to replay.
                continue;
            }
            let proof = match sealed {
                Some(_) => Proof::Exact,
                None if self.ends_at_checkpoint => Proof::Exact,
                None if at + 1 < last || is_clean => Proof::Later,
                None => Proof::None,
            };
            self.replay_segment(replay, one, proof)?;
        }
        Ok(found)
    }

    /// The index of the mark's segment in the manifest; `None` if the mark is before the first batch.
    fn find_mark(&self, mark: Mark) -> Result<Option<usize>, OpenError> {
        let rows = &self.manifest.segments;
        let mark_at = rows.iter().position(|row| row.id.number == mark.segment);
        if mark.segment != 0 && mark_at.is_none() {
            let segment = segment_name(mark.segment);
            return Err(OpenError::SegmentMissing { folder: self.context.storage.location(), segment });
        }
        if let Some(row) = mark_at.map(|at| rows[at]) {
            let end = row.sealed.unwrap_or(row.id.capacity);
            if !(SEGMENT_DATA_START..=end).contains(&mark.position) {
                let name = checkpoint_name(self.manifest.checkpoints[1]);
                return Err(OpenError::ManifestDamaged(Box::new(Fault::new(name, 0, FaultKind::Checkpoint))));
            }
        }
        Ok(mark_at)
    }

    fn find_segments(&self, mark: Mark, mark_at: Option<usize>) -> Result<FoundSegments, OpenError> {
        let mut found = FoundSegments { used: Vec::new(), prepared: Vec::new(), unusable: Vec::new() };
        let mut begun: Vec<BegunSegment<UsedSegment>> = Vec::new();
        for (at, row) in self.manifest.segments.iter().enumerate() {
            let segment = self.segment_of(row);
            let from = if Some(at) == mark_at { mark.position } else { SEGMENT_DATA_START };
            let is_before_mark = mark_at.is_some_and(|mark_at| at < mark_at);
            if let Some(sealed) = row.sealed {
                let is_old = is_before_mark || row.id.kind == SegmentKind::Rewritten;
                found.used.push(UsedSegment::new(segment, if is_old { sealed } else { from }, sealed));
                continue;
            }
            let first_batch = if Some(at) == mark_at {
                Some(mark.batch)
            } else if self.ends_at_checkpoint {
                found.add_prepared(row, segment);
                continue;
            } else {
                let looked = begun_segments::begun(&segment);
                match looked.map_err(|error| self.unreadable(segment.name(), error.into()))? {
                    Begun::Batches { first } => Some(first),
                    Begun::Frames => None,
                    Begun::No => {
                        found.add_prepared(row, segment);
                        continue;
                    }
                    Begun::Unusable => {
                        found.unusable.push(*row);
                        continue;
                    }
                    Begun::Unknown { at, .. } => return Err(self.unreadable(segment.name(), at)),
                    // There is not even one whole frame. The bytes are copied to a cut file, and the segment is dropped.
                    Begun::Bytes { end } => {
                        let mut remains = UsedSegment::new(segment, SEGMENT_DATA_START, SEGMENT_DATA_START);
                        remains.torn_to = Some(end);
                        self.cut(&remains)
                            .map_err(|error| self.error("keep the bytes of a torn tail", error))?;
                        continue;
                    }
                }
            };
            let segment = UsedSegment::new(segment, from, row.id.capacity);
            begun.push(BegunSegment { row: at, is_reserve: row.reserve, first_batch, segment });
        }
        found.used.extend(in_log_order(begun));
        Ok(found)
    }

    /// Replays one segment, and finds its end.
    fn replay_segment(
        &self,
        replay: &mut Replay,
        one: &mut UsedSegment,
        proof: Proof,
    ) -> Result<(), OpenError> {
        let sealed = one.segment.sealed();
        let error = |error: io::Error| self.unreadable(one.segment.name(), error.into());
        let mut index = if one.from > SEGMENT_DATA_START {
            index_segment(&one.segment, one.from, self.context.hash)
                .map_err(|at| self.unreadable(one.segment.name(), at))?
        } else {
            Index::default()
        };
        let to = if self.ends_at_checkpoint && sealed.is_none() { one.from } else { one.end };
        let mut found = replay.segment(&one.segment, one.from, to, proof, &mut index).map_err(error)?;
        if let Some(position) = found.needed_hole {
            let source = found.holes.error();
            return Err(self.unreadable(one.segment.name(), UnreadableAt { position, source }));
        }
        if proof == Proof::None && found.torn_to.is_none() && one.segment.id.life == 0 {
            // Bytes other than zero are an unfinished batch without one whole header. (In a recycled file they may also
            // be from an earlier use.)
            let file = one.segment.file().map_err(error)?;
            let capacity = one.segment.id.capacity;
            found.torn_to = end_of_nonzero(&*file, found.end, capacity, &mut found.holes).map_err(error)?;
        }
        if sealed.is_none() {
            let SegmentEnd { end, torn_to, is_damaged, holes, .. } = found;
            (one.end, one.torn_to, one.is_damaged) = (end, torn_to, is_damaged);
            one.has_holes = !holes.is_empty() || one.segment.has_accepted_losses();
        }
        one.index = Some(index);
        Ok(())
    }
}
