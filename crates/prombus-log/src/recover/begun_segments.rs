//! Which unsealed segments were begun, and in which order.

use crate::frame_scan::{Found, Scan, end_of_nonzero};
use crate::layout::SEGMENT_DATA_START;
use crate::record::{HEADER_BYTES, Kind};
use crate::segment::Segment;
use crate::unreadable_ranges::{UnreadableAt, UnreadableRanges};
use std::io;

/// The first place that could not be read and that may hold something durable, in a segment whose last frame ends at `end`.
///
/// Batches follow each other without a gap. So zeros at `end` prove that nothing follows, and a later hole is in bytes that
/// were never used. Other bytes may be a damaged frame whose followers cannot be read; in a recycled file they may also be of
/// an earlier life, and count as unused.
pub(super) fn needed_hole(segment: &Segment, holes: &UnreadableRanges, end: u64) -> io::Result<Option<u64>> {
    let near = holes.overlapping(0..end.saturating_add(HEADER_BYTES as u64)).map(|hole| hole.start);
    if near.is_some() || holes.is_empty() || segment.id.life > 0 {
        return Ok(near);
    }
    let mut bytes = [0; HEADER_BYTES];
    let read = segment.file()?.read_at(&mut bytes, end)?;
    let is_used = bytes[..read].iter().any(|&byte| byte != 0);
    Ok(holes.ranges().iter().find(|hole| is_used && hole.start >= end).map(|hole| hole.start))
}

/// What a segment without a sealed length holds.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Nothing: it is ready for use.
    No,
    /// Nothing, but some of its unused bytes cannot be read: what would be written there might be lost.
    Unusable,
    /// A place that may hold the first batch cannot be read, so neither that nor its number is known.
    Unknown {
        at: UnreadableAt,
        /// It was begun, as later frames show.
        has_frames: bool,
        /// The number of a later batch in it.
        batch: Option<u64>,
    },
    /// Bytes, but not one whole frame. They prove nothing about other segments.
    Bytes { end: u64 },
    /// Frames of a batch without its COMMIT.
    Frames,
    /// Batches, the first with this number.
    Batches { first: u64 },
}

pub(crate) fn begun(segment: &Segment) -> io::Result<Begun> {
    let file = segment.file()?;
    let end = segment.id.capacity;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false).around_holes();
    let mut frames_end = SEGMENT_DATA_START;
    while let Some(found) = scan.next()? {
        if let Found::Frame { header, position, .. } = found {
            if header.kind == Kind::Commit {
                // The number of a later batch is not that of the first one.
                return Ok(match scan.holes().overlapping(0..position) {
                    None => Begun::Batches { first: header.seq },
                    Some(hole) => {
                        let at = UnreadableAt { position: hole.start, source: scan.holes().error() };
                        Begun::Unknown { at, has_frames: true, batch: Some(header.seq) }
                    }
                });
            }
            frames_end = scan.position();
        }
    }
    let mut holes = scan.into_holes();
    if let Some(position) = needed_hole(segment, &holes, frames_end)? {
        let has_frames = frames_end > SEGMENT_DATA_START;
        let at = UnreadableAt { position, source: holes.error() };
        return Ok(Begun::Unknown { at, has_frames, batch: None });
    }
    if frames_end > SEGMENT_DATA_START {
        return Ok(Begun::Frames);
    }
    if segment.id.life == 0
        && let Some(end) = end_of_nonzero(&*file, SEGMENT_DATA_START, end, &mut holes)?
    {
        return Ok(Begun::Bytes { end });
    }
    Ok(if holes.is_empty() { Begun::No } else { Begun::Unusable })
}

/// A segment that was begun, its place in the manifest, and the first batch in it, if that is known.
pub(crate) struct BegunSegment<T> {
    pub(crate) row: usize,
    pub(crate) is_reserve: bool,
    pub(crate) first_batch: Option<u64>,
    pub(crate) segment: T,
}

/// The order in which segments were begun: by batch number. One that lost its COMMITs stands where the manifest has it
/// (segments are taken in that order, but for the reserve), else last.
pub(crate) fn in_log_order<T>(segments: Vec<BegunSegment<T>>) -> Vec<T> {
    let (mut ordered, unknown): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|begun| begun.first_batch.is_some());
    ordered.sort_by_key(|begun| begun.first_batch);
    for begun in unknown {
        let is_behind =
            |other: &BegunSegment<T>| !begun.is_reserve && !other.is_reserve && other.row > begun.row;
        let at = ordered.iter().position(is_behind).unwrap_or(ordered.len());
        ordered.insert(at, begun);
    }
    ordered.into_iter().map(|begun| begun.segment).collect()
}
