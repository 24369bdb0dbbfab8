//! Finds the batches of a segment, and distinguishes corruption from a torn tail.
//!
//! Batch k+1 is written only after batch k was synced. So any frame after a batch proves that the batch was durable. If
//! such a batch is invalid, it is corrupt, and its intact records are recovered. If the last batch is invalid and nothing
//! follows it, it was never acknowledged: it is a torn tail.

use crate::checkpoint::Mark;
use crate::error::{Fault, FaultKind};
use crate::frame_scan::{Found, Scan};
use crate::index::Index;
use crate::layout::SEGMENT_DATA_START;
use crate::record::{self, Commit, HEADER_BYTES, Kind, digest_add};
use crate::recover::begun_segments::needed_hole;
use crate::recover::replay::Replay;
use crate::segment::Segment;
use crate::unreadable_ranges::UnreadableRanges;
use std::io;

/// What proves that the part to replay was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing. An invalid last batch was possibly never acknowledged.
    None,
    /// A later segment was begun, or the log was closed cleanly but its newest checkpoint is bad. So all batches in the
    /// segment were synced, but the exact end of the last one is unknown.
    Later,
    /// The segment is sealed, a checkpoint covers the part, or the log was closed cleanly and its newest checkpoint is
    /// intact. So the part was synced up to its exact end.
    Exact,
}

/// How a segment ends.
#[derive(Debug)]
pub(crate) struct SegmentEnd {
    /// The end of the last durable batch.
    pub(crate) end: u64,
    /// Where the bytes of an unfinished batch end, if there are any.
    pub(crate) torn_to: Option<u64>,
    /// Whether the last batch is damaged. Then the segment must be sealed after this batch, because the proof that the
    /// batch was durable may be gone at the next open.
    pub(crate) is_damaged: bool,
    /// Ranges that could not be read.
    pub(crate) holes: UnreadableRanges,
    /// The position of the first unreadable range that may contain durable bytes. If there is one, the other fields cannot
    /// be relied on.
    pub(crate) needed_hole: Option<u64>,
}

/// A frame after the last batch that was found.
struct SeenFrame {
    position: u64,
    end: u64,
    header_crc: u32,
    /// Whether the body matches its checksum.
    is_valid: bool,
}

/// An invalid batch, until it is known whether anything follows it.
struct Suspect {
    /// Where the batch starts in the segment.
    start: u64,
    /// Where the COMMIT of the batch ends.
    end: u64,
    commit: Commit,
}

/// The state of a walk over the frames of a segment.
struct SegmentWalk {
    /// The end of the last batch that was found.
    last_end: u64,
    /// The frames after the last batch that was found.
    seen: Vec<SeenFrame>,
    /// An invalid batch after the last batch that was found.
    suspect: Option<Suspect>,
}

impl SegmentWalk {
    /// Where the frames of an incomplete or invalid last batch end, if there are any.
    fn remains_end(&self) -> Option<u64> {
        self.seen.last().map(|frame| frame.end).or(self.suspect.as_ref().map(|batch| batch.end))
    }
}

impl Replay {
    /// Replays `from..to` of a segment into `self` and `index`.
    pub(crate) fn segment(
        &mut self,
        segment: &Segment,
        from: u64,
        to: u64,
        proof: Proof,
        index: &mut Index,
    ) -> io::Result<SegmentEnd> {
        let file = segment.file()?;
        self.replayed_holes = UnreadableRanges::default();
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true).around_holes();
        let mut walk = SegmentWalk { last_end: from, seen: Vec::new(), suspect: None };
        while let Some(found) = scan.next()? {
            let Found::Frame { position, header, is_body_valid } = found else { continue };
            if let Some(batch) = walk.suspect.take() {
                // A frame follows the batch, so the batch was durable.
                self.replay_suspect(segment, &batch, index)?;
                walk.last_end = batch.end;
            }
            let commit = (header.kind == Kind::Commit && is_body_valid)
                .then(|| record::read_commit(&header, scan.frame()))
                .flatten()
                .filter(|commit| commit.batch > self.mark.batch);
            let end = scan.position();
            let start = commit.as_ref().and_then(|commit| end.checked_sub(commit.length));
            let (Some(commit), Some(start)) = (commit, start.filter(|&start| start >= walk.last_end)) else {
                let crc = if is_body_valid { record::header_crc(scan.frame()) } else { 0 };
                walk.seen.push(SeenFrame { position, end, header_crc: crc, is_valid: is_body_valid });
                continue;
            };
            self.replay_commit(segment, &mut walk, Suspect { start, end, commit }, position, index)?;
        }
        let remains_end = walk.remains_end();
        let mut holes = scan.into_holes();
        let tail_start = walk.suspect.as_ref().map_or(walk.last_end, |batch| batch.start);
        let tail = tail_start..remains_end.unwrap_or(walk.last_end) + HEADER_BYTES as u64;
        // An operator has given up a part of the last batch. So the batch counts as durable and lost, not as unfinished.
        let is_given_up = proof == Proof::None && segment.accepted_loss_in(&tail);
        if proof == Proof::None && !is_given_up {
            let end = walk.suspect.map_or(walk.last_end, |batch| batch.start);
            let needed_hole = self.needed_hole(segment, &mut holes, remains_end.unwrap_or(walk.last_end))?;
            return Ok(SegmentEnd { end, torn_to: remains_end, is_damaged: false, holes, needed_hole });
        }
        let exact_end = (proof == Proof::Exact).then_some(to);
        let (end, is_damaged) = self.replay_durable_end(segment, walk, exact_end, &holes, index)?;
        let needed_hole = self.needed_hole(segment, &mut holes, end)?;
        Ok(SegmentEnd { end, torn_to: None, is_damaged: is_damaged || is_given_up, holes, needed_hole })
    }

    /// Handles an intact COMMIT at `position`: replays its batch if the batch is valid, or else keeps the batch as a
    /// suspect.
    fn replay_commit(
        &mut self,
        segment: &Segment,
        walk: &mut SegmentWalk,
        batch: Suspect,
        position: u64,
        index: &mut Index,
    ) -> io::Result<()> {
        let Suspect { start, end, commit } = &batch;
        let (start, end) = (*start, *end);
        if start > walk.last_end {
            self.replay_region(segment, walk.last_end, start, None, index)?;
            self.lost_commit = true;
        }
        if start == SEGMENT_DATA_START
            && commit.batch > self.mark.batch + 1
            && let Some((number, rest)) = self.rest_of_last.take()
            && is_batch_valid(&walk.seen, start, position, commit)
        {
            // A valid batch proves that the missing batches before it were durable. They were at the end of the previous
            // segment.
            self.audit.add_damage(number, rest);
            self.lost_commit = true;
        }
        let chained =
            self.lost_commit || self.mark.batch + 1 == commit.batch && self.mark.chain == commit.previous;
        if chained && is_batch_valid(&walk.seen, start, position, commit) {
            self.replay_region(segment, start, end, Some(commit), index)?;
            self.advance(segment, end, commit);
        } else {
            walk.suspect = Some(batch);
        }
        walk.last_end = end;
        walk.seen.clear();
        Ok(())
    }

    /// Replays the records after the last valid batch of a segment that is known to be durable, up to `exact_end` if that
    /// is known. Returns the end of the segment, and whether its last batch is damaged.
    fn replay_durable_end(
        &mut self,
        segment: &Segment,
        walk: SegmentWalk,
        exact_end: Option<u64>,
        holes: &UnreadableRanges,
        index: &mut Index,
    ) -> io::Result<(u64, bool)> {
        let remains_end = walk.remains_end();
        let SegmentWalk { mut last_end, suspect, .. } = walk;
        let end_found = remains_end.unwrap_or(last_end);
        self.rest_of_last =
            exact_end.is_none().then(|| (segment.id.number, end_found..segment.id.capacity.max(end_found)));
        let mut is_damaged = suspect.is_some();
        if let Some(batch) = suspect {
            self.replay_suspect(segment, &batch, index)?;
            last_end = batch.end;
        }
        let end = exact_end.unwrap_or(remains_end.unwrap_or(last_end));
        if end > last_end {
            self.replay_region(segment, last_end, end, None, index)?;
            self.lost_commit = true;
            is_damaged = true;
            if exact_end.is_none() {
                let is_unreadable = holes.overlapping(last_end..end + HEADER_BYTES as u64).is_some();
                self.report(Fault::new(segment.name(), end, FaultKind::Commit), is_unreadable);
            }
            // The damaged batch had a number, which must not be used again, and no checkpoint covers the batch yet.
            self.mark =
                Mark { segment: segment.id.number, position: end, batch: self.mark.batch + 1, ..self.mark };
        }
        Ok((end, is_damaged))
    }

    /// The position of the first unreadable range that may contain durable bytes. Records are read twice: to find the
    /// batches, and to replay them. A range that could not be read only the second time counts too, because its records
    /// were not replayed.
    fn needed_hole(
        &mut self,
        segment: &Segment,
        holes: &mut UnreadableRanges,
        end: u64,
    ) -> io::Result<Option<u64>> {
        let taken = std::mem::take(&mut self.replayed_holes);
        let needed = needed_hole(segment, holes, end)?
            .into_iter()
            .chain(taken.ranges().first().map(|hole| hole.start));
        let needed = needed.min();
        holes.append(taken);
        Ok(needed)
    }

    fn advance(&mut self, segment: &Segment, end: u64, commit: &Commit) {
        self.lost_commit = false;
        self.mark =
            Mark { segment: segment.id.number, position: end, batch: commit.batch, chain: commit.chain };
        self.last_commit_ms = self.last_commit_ms.max(commit.commit_ms);
    }

    fn replay_suspect(&mut self, segment: &Segment, batch: &Suspect, index: &mut Index) -> io::Result<()> {
        self.replay_region(segment, batch.start, batch.end, Some(&batch.commit), index)?;
        self.advance(segment, batch.end, &batch.commit);
        Ok(())
    }
}

/// Whether the frames in `seen`, from `start` on, are exactly those that the run table of the COMMIT at
/// `commit_position` lists.
fn is_batch_valid(seen: &[SeenFrame], start: u64, commit_position: u64, commit: &Commit) -> bool {
    let mut frames = seen.iter().filter(|frame| frame.position >= start);
    let mut position = start;
    for run in &commit.runs {
        let mut digest = 0;
        for _ in 0..run.count {
            match frames.next() {
                Some(frame) if frame.is_valid && frame.position == position => {
                    digest = digest_add(digest, frame.header_crc);
                    position = frame.end;
                }
                _ => return false,
            }
        }
        if digest != run.digest {
            return false;
        }
    }
    position == commit_position && frames.next().is_none()
}
