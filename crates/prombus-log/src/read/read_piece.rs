//! Reads one part of a segment file. Every frame is checked, damage is reported, and a read ends before unreadable events.

use crate::error::{Fault, FaultKind, ReadError};
use crate::layout::FRAME_MAGIC;
use crate::read::chunk::{Chunk, MissingReason, ReadLimit, RecordPlace};
use crate::read::committed_log::CommittedLog;
use crate::record::{self, Header, Kind};
use crate::segment::Segment;
use crate::unreadable_ranges::{UnreadableRanges, read_around};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The part of a segment file for one read.
pub(super) struct Piece {
    pub(super) segment: Arc<Segment>,
    /// Where the piece starts in the file.
    pub(super) position: u32,
    /// Where the piece ends in the file.
    pub(super) end: u32,
    /// The last seq of the topic in the piece.
    pub(super) last_seq: u64,
    /// The first seq of the topic in the piece.
    pub(super) first_seq: u64,
}

/// One read of a piece.
pub(super) struct PieceRead<'a> {
    pub(super) log: &'a CommittedLog,
    pub(super) topic: u32,
    pub(super) piece: &'a Piece,
    /// The seq that the read starts with.
    pub(super) from: u64,
    pub(super) limit: ReadLimit,
}

impl PieceRead<'_> {
    pub(super) fn read(&self, chunk: &mut Chunk) -> Result<(), ReadError> {
        let mut holes = UnreadableRanges::default();
        let buffer = self.load(&mut holes)?;
        let length = buffer.len();
        if self.piece.first_seq > chunk.next_seq {
            chunk.skip_to(self.piece.first_seq, MissingReason::Cleaned);
        }
        let salt = self.piece.segment.id.salt;
        let mut offset = 0;
        let mut gap: Option<usize> = None;
        while offset < length {
            let Some(header) = Header::checked(&buffer[offset..], salt) else {
                gap.get_or_insert(offset);
                offset = next_frame(&buffer, offset + 1, salt);
                continue;
            };
            if header.kind == Kind::Event && header.topic == self.topic {
                if header.seq < chunk.next_seq {
                    // This event precedes the wanted ones, so the damage before it does not matter.
                    gap = None;
                } else if !self.take_event(&header, &buffer, offset, &mut gap, &holes, chunk)? {
                    return Ok(());
                }
            }
            offset += header.frame_length();
        }
        let last_seq = self.piece.last_seq;
        if let Some(at) = gap {
            if self.is_in_hole(&holes, at, length) && chunk.next_seq <= last_seq {
                return self.end_before(last_seq, &holes, chunk);
            }
            self.lose(at, chunk, last_seq);
        }
        if chunk.next_seq <= last_seq {
            chunk.skip_to(last_seq + 1, MissingReason::Cleaned);
        }
        Ok(())
    }

    /// Reads the bytes, and adds unreadable ranges to `holes`.
    fn load(&self, holes: &mut UnreadableRanges) -> Result<Bytes, ReadError> {
        let piece = self.piece;
        let mut buffer = self.log.read_pool.take();
        buffer.resize((piece.end - piece.position) as usize, 0);
        let read = piece
            .segment
            .file()
            .and_then(|file| read_around(&*file, &mut buffer, u64::from(piece.position), holes))
            .map_err(|source| {
                // The file as a whole cannot be read, so all events of the piece are unreadable.
                self.unreadable_events(self.from.max(piece.first_seq), piece.last_seq, &[], source)
            })?;
        // If the file is too short, zeros replace the missing bytes, and are found as damage.
        buffer[read..].fill(0);
        Ok(self.log.read_pool.share(buffer))
    }

    fn is_in_hole(&self, holes: &UnreadableRanges, start: usize, end: usize) -> bool {
        let position = u64::from(self.piece.position);
        !holes.is_empty() && holes.overlapping(position + start as u64..position + end as u64).is_some()
    }

    /// Adds a wanted event to the chunk. `gap` is the start of damaged bytes before it, if any. Returns false if the read
    /// ends before the event.
    #[inline]
    fn take_event(
        &self,
        header: &Header,
        buffer: &Bytes,
        offset: usize,
        gap: &mut Option<usize>,
        holes: &UnreadableRanges,
        chunk: &mut Chunk,
    ) -> Result<bool, ReadError> {
        if chunk.is_full(self.limit) {
            return Ok(false);
        }
        if let Some(at) = gap.take() {
            let last_seq = header.seq - 1;
            if !self.is_in_hole(holes, at, offset) {
                self.lose(at, chunk, last_seq);
            } else if last_seq >= chunk.next_seq {
                return self.end_before(last_seq, holes, chunk).map(|()| false);
            }
        }
        if header.seq > chunk.next_seq {
            chunk.skip_to(header.seq, MissingReason::Cleaned);
        }
        let frame_length = header.frame_length();
        if self.is_in_hole(holes, offset, offset + frame_length) {
            return self.end_before(header.seq, holes, chunk).map(|()| false);
        }
        if record::is_body_valid(header, &buffer[offset..]) {
            if chunk.buffers.is_empty() {
                chunk.buffers.push(buffer.clone());
            }
            chunk.records.push(RecordPlace { buffer: 0, offset: offset as u32 });
            chunk.bytes += frame_length;
            chunk.next_seq = header.seq + 1;
        } else {
            self.lose(offset, chunk, header.seq);
        }
        Ok(true)
    }

    /// Ends a read before unreadable events, which reach up to `last_seq`. Fails if the read has not advanced.
    fn end_before(&self, last_seq: u64, holes: &UnreadableRanges, chunk: &Chunk) -> Result<(), ReadError> {
        if chunk.next_seq > self.from {
            return Ok(());
        }
        Err(self.unreadable_events(self.from, last_seq, holes.ranges(), holes.error()))
    }

    fn unreadable_events(
        &self,
        first_seq: u64,
        last_seq: u64,
        bytes: &[Range<u64>],
        source: io::Error,
    ) -> ReadError {
        let position = bytes.first().map_or(u64::from(self.piece.position), |range| range.start);
        let error =
            ReadError::Unreadable { first_seq, last_seq, file: self.piece.segment.name(), position, source };
        self.log.read_errors.note_events(self.topic, bytes, &error);
        error
    }

    /// Skips the seqs up to `last_seq` as damaged, and reports them. Damage outside of this topic's events is left to the
    /// readers of the affected topic and to `verify`.
    fn lose(&self, offset: usize, chunk: &mut Chunk, last_seq: u64) {
        if chunk.next_seq > last_seq {
            return;
        }
        let position = u64::from(self.piece.position) + offset as u64;
        self.log.damage.report(Fault {
            topic: self.log.topic_name(self.topic),
            seq: Some(chunk.next_seq),
            last_seq: Some(last_seq),
            ..Fault::new(self.piece.segment.name(), position, FaultKind::Event)
        });
        chunk.skip_to(last_seq + 1, MissingReason::Corrupt);
    }
}

/// The next offset with a valid header, or the end.
fn next_frame(buffer: &[u8], from: usize, salt: u32) -> usize {
    let mut offset = from;
    while let Some(skipped) =
        buffer[offset.min(buffer.len())..].iter().position(|&byte| byte == FRAME_MAGIC[0])
    {
        offset += skipped;
        if Header::checked(&buffer[offset..], salt).is_some() {
            return offset;
        }
        offset += 1;
    }
    buffer.len()
}
