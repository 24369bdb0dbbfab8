//! Determines which unsealed segments were begun (contain records), and in which order.

use crate::frame_scan::{Found, Scan, end_of_nonzero};
use crate::layout::SEGMENT_DATA_START;
use crate::record::{HEADER_BYTES, Kind};
use crate::segment::Segment;
use crate::unreadable_ranges::{UnreadableAt, UnreadableRanges};
use std::io;

/// The position of the first unreadable range that may contain durable bytes, in a segment whose last frame ends at `end`.
///
/// Batches follow each other without gaps. So zeros at `end` prove that nothing follows, and a later unreadable range was
/// never used. Bytes other than zero may be a damaged frame, and the frames after it may be unreadable. In a recycled file
/// such bytes are probably from an earlier use of the file, and count as unused.
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

/// The content of a segment without a sealed length.
#[derive(Debug)]
pub(crate) enum Begun {
    /// No frame: the segment is ready for use.
    No,
    /// No frame, but some bytes cannot be read. Data written there might be lost.
    Unusable,
    /// Bytes that may contain the first batch cannot be read. So it is unknown whether there is a batch, and which
    /// number the first one has.
    Unknown {
        at: UnreadableAt,
        /// Whether later frames show that the segment was begun.
        has_frames: bool,
        /// The number of a later batch in the segment.
        batch: Option<u64>,
    },
    /// Bytes other than zero up to `end`, but not one whole frame. Unlike a frame, they do not count as proof that the
    /// batches in earlier segments were synced.
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
                // If bytes before this COMMIT are unreadable, an earlier batch may be in them.
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

/// A segment that was begun.
pub(crate) struct BegunSegment<T> {
    /// The index of its row in the manifest.
    pub(crate) row: usize,
    pub(crate) is_reserve: bool,
    /// The number of its first batch, if that is known.
    pub(crate) first_batch: Option<u64>,
    pub(crate) segment: T,
}

/// Sorts segments by the order in which they were begun, that is, by batch number. Segments other than reserve segments
/// (kept for a full disk) are begun in the order of the manifest. So a segment without a COMMIT is placed before the
/// first sorted segment that follows it in the manifest. If there is none, or if it is a reserve segment, it is placed
/// last.
pub(crate) fn in_log_order<T>(segments: Vec<BegunSegment<T>>) -> Vec<T> {
    let (mut ordered, unknown): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|begun| begun.first_batch.is_some());
    ordered.sort_by_key(|begun| begun.first_batch);
    for begun in unknown {
        let is_later =
            |other: &BegunSegment<T>| !begun.is_reserve && !other.is_reserve && other.row > begun.row;
        let at = ordered.iter().position(is_later).unwrap_or(ordered.len());
        ordered.insert(at, begun);
    }
    ordered.into_iter().map(|begun| begun.segment).collect()
}
