//! Reading a topic from a seq on: from the tail in memory when it has it, else from the files in large pieces. Neither holds
//! up the writer. Every byte that comes from a file is checked; what does not check is left out and named.
//!
//! **Invariant:** events that cannot be read are never passed over. A read ends before them, and a read that starts with them is
//! an error that names them.

use crate::append::TopicId;
use crate::error::{Fault, FaultKind, ReadError};
use crate::holes::{Holes, read_around};
use crate::index::{Entry, EntrySearch};
use crate::layout::FRAME_MAGIC;
use crate::log::Shared;
use crate::record::{self, Event, HEADER_BYTES, Header, Kind, trusted_event};
use crate::scan::PIECE_BYTES;
use crate::segment::Segment;
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Entries this close to each other are read in one piece.
const JOIN_BYTES: u32 = 16 * 1024;

/// A read of a few events walks past this many others of a run in the tail; further inside of a long run the index finds them
/// sooner.
const WALK_MAX: u64 = 64;
/// What few events take at most.
const FEW_BYTES: usize = 16 * 1024;

/// How much a read takes at most. At least one event is read whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// The most events.
    pub events: usize,
    /// The most bytes of records.
    pub bytes: usize,
}

impl Default for ReadLimit {
    fn default() -> Self {
        Self { events: usize::MAX, bytes: PIECE_BYTES }
    }
}

/// Why seqs are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingReason {
    /// Retention, compaction or deletion took them.
    Cleaned,
    /// They are damaged.
    Corrupt,
}

/// Seqs that a read passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The first one.
    pub first_seq: u64,
    /// The last one.
    pub last_seq: u64,
    /// Why.
    pub reason: MissingReason,
}

#[derive(Clone, Copy, Debug)]
struct RecordPlace {
    buffer: u32,
    offset: u32,
}

/// Events that were read together. Reuse one for many reads: it keeps its memory.
#[derive(Debug, Default)]
pub struct Chunk {
    buffers: Vec<Bytes>,
    records: Vec<RecordPlace>,
    missing: Vec<Missing>,
    bytes: usize,
    next_seq: u64,
}

impl Chunk {
    /// The events, in seq order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> + '_ {
        self.records
            .iter()
            .map(|place| trusted_event(&self.buffers[place.buffer as usize][place.offset as usize..]))
    }

    /// The event at a place, from 0 to [`len`](Self::len).
    ///
    /// # Panics
    /// When there is none.
    pub fn event(&self, at: usize) -> Event<'_> {
        let place = self.records[at];
        trusted_event(&self.buffers[place.buffer as usize][place.offset as usize..])
    }

    /// Lets go of everything that was read; the memory of lists is kept.
    pub fn forget(&mut self) {
        self.clear(0);
    }

    /// How many events it holds.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it holds no event.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Seqs in the range read that are not there.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Where the next read goes on.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    fn clear(&mut self, from: u64) {
        self.buffers.clear();
        self.records.clear();
        self.missing.clear();
        self.bytes = 0;
        self.next_seq = from;
    }

    fn is_full(&self, limit: ReadLimit) -> bool {
        !self.records.is_empty() && (self.records.len() >= limit.events || self.bytes >= limit.bytes)
    }

    /// Finds the events in the runs that the tail gave, up to the limit.
    fn take_runs(&mut self, from: u64, limit: ReadLimit) {
        for at in 0..self.buffers.len() {
            let run = self.buffers[at].clone();
            let mut offset = 0;
            while offset < run.len() {
                let frame = &run[offset..];
                let length = record::trusted_frame_length(frame);
                let seq = crate::fields::u64_at(frame, 24);
                if seq >= from {
                    if self.is_full(limit) {
                        return;
                    }
                    self.records.push(RecordPlace { buffer: at as u32, offset: offset as u32 });
                    self.bytes += length;
                    self.next_seq = seq + 1;
                }
                offset += length;
            }
        }
    }

    fn skip_to(&mut self, seq: u64, reason: MissingReason) {
        if seq > self.next_seq {
            self.missing.push(Missing { first_seq: self.next_seq, last_seq: seq - 1, reason });
            self.next_seq = seq;
        }
    }
}

/// A file's part that a read takes in one go.
struct Piece {
    segment: Arc<Segment>,
    position: u32,
    end: u32,
    /// The last seq that stands in it.
    last_seq: u64,
    /// The first one.
    first_seq: u64,
}

impl Shared {
    /// Reads from a seq on, and keeps account of what cannot be read.
    pub(crate) fn read(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        match limit {
            ReadLimit { events: 1, .. } | ReadLimit { bytes: ..=FEW_BYTES, .. } => {
                self.read_few(topic, from, limit, chunk)
            }
            _ => self.read_noting(topic, from.max(1), limit, u64::MAX, chunk),
        }
    }

    /// Reads a few events that may be deep inside of a long run in the tail. Costs the same wherever they are.
    pub(crate) fn read_few(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        // What the file does not give, the tail may still have.
        self.read_noting(topic, from.max(1), limit, WALK_MAX, chunk)
            .or_else(|_| self.read_noting(topic, from.max(1), limit, u64::MAX, chunk))
    }

    fn read_noting(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        walk_max: u64,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        let read = self.read_from(topic, from, limit, walk_max, chunk);
        match &read {
            Ok(()) if self.unreadable.is_any() => self.note_read(topic, from, chunk.next_seq),
            // An index that cannot be read was noted where that was found.
            Ok(()) | Err(ReadError::UnknownTopic(_) | ReadError::Io { .. }) => {}
            Err(error @ ReadError::Unreadable { .. }) => self.note_read_error(error),
        }
        read
    }

    fn read_from(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        walk_max: u64,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        chunk.clear(from);
        let last_seq = self.durable_seq(topic)?;
        if from > last_seq {
            return Ok(());
        }
        let is_in_tail = self.view.read().tail.collect(topic, from, limit, walk_max, &mut chunk.buffers);
        if is_in_tail {
            chunk.take_runs(from, limit);
            return Ok(());
        }
        match self.piece_from(topic, from, limit)? {
            Some(piece) => self.read_piece(topic, &piece, limit, chunk),
            None => {
                // Everything up to what was there at the start is cleaned away; what came since is for the next read.
                chunk.skip_to(last_seq + 1, MissingReason::Cleaned);
                Ok(())
            }
        }
    }

    /// The newest durable seq of a topic; zero when it has none yet.
    pub(crate) fn durable_seq(&self, topic: u32) -> Result<u64, ReadError> {
        if let Some(seq) = self.view.read().last_seq(topic) {
            return Ok(seq);
        }
        // It may be so new that its own record is not durable yet.
        if self.topics.read().is_alive(TopicId(topic)) { Ok(0) } else { Err(ReadError::UnknownTopic(topic)) }
    }

    /// The part of a file to read for `from`.
    fn piece_from(&self, topic: u32, from: u64, limit: ReadLimit) -> Result<Option<Piece>, ReadError> {
        let segments = Arc::clone(&self.view.read().segments);
        let span = limit.bytes.clamp(1, PIECE_BYTES) as u32;
        let piece = |segment: &Arc<Segment>, entries: &[Entry]| {
            let first = entries.reaching(from)?;
            let at = entries.partition_point(|entry| entry.last_seq < from);
            let mut piece = Piece {
                segment: Arc::clone(segment),
                position: first.position,
                end: first.end,
                first_seq: first.first_seq,
                last_seq: first.last_seq,
            };
            for entry in &entries[at + 1..] {
                if entry.position.saturating_sub(piece.end) > JOIN_BYTES || entry.end - piece.position > span
                {
                    break;
                }
                piece.end = entry.end;
                piece.last_seq = entry.last_seq;
            }
            Some(piece)
        };
        let found = self.first_segment_reaching(&segments, topic, from)?;
        match found {
            None => Ok(None),
            Some(at) => self.with_entries(&segments[at], topic, |entries| piece(&segments[at], entries)),
        }
    }

    /// The first segment that holds this seq of the topic or a later one.
    pub(crate) fn first_segment_reaching(
        &self,
        segments: &[Arc<Segment>],
        topic: u32,
        seq: u64,
    ) -> Result<Option<usize>, ReadError> {
        let mut low = 0;
        let mut high = segments.len();
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            // A segment without the topic says nothing: look before it.
            let mut probe = None;
            for at in (low..=middle).rev() {
                let last = self.with_entries(&segments[at], topic, |entries| entries.last().copied())?;
                if let Some(last) = last {
                    probe = Some((at, last.last_seq));
                    break;
                }
            }
            match probe {
                Some((at, last_seq)) if last_seq >= seq => {
                    found = Some(at);
                    high = at;
                }
                _ => low = middle + 1,
            }
        }
        Ok(found)
    }

    fn read_piece(
        &self,
        topic: u32,
        piece: &Piece,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        let from = chunk.next_seq;
        let length = (piece.end - piece.position) as usize;
        let mut buffer = self.read_pool.take();
        buffer.resize(length, 0);
        let position = u64::from(piece.position);
        let mut holes = Holes::default();
        let read = piece
            .segment
            .file()
            .and_then(|file| read_around(&*file, &mut buffer, position, &mut holes))
            .map_err(|source| {
                // The file as a whole: everything that the piece holds.
                self.unreadable_events(topic, piece, from.max(piece.first_seq), piece.last_seq, &[], source)
            })?;
        // A file cut short: what is missing does not check.
        buffer[read..].fill(0);
        let buffer = self.read_pool.share(buffer);

        if piece.first_seq > chunk.next_seq {
            chunk.skip_to(piece.first_seq, MissingReason::Cleaned);
        }
        let in_hole = |start: usize, end: usize| {
            !holes.is_empty() && holes.overlapping(position + start as u64..position + end as u64).is_some()
        };
        let salt = piece.segment.id.salt;
        let mut offset = 0;
        let mut gap: Option<usize> = None;
        while offset < length {
            let Some(header) = Header::checked(&buffer[offset..], salt) else {
                gap.get_or_insert(offset);
                offset = next_frame(&buffer, offset + 1, salt);
                continue;
            };
            let frame_length = header.frame_length();
            let is_ours = header.kind == Kind::Event && header.topic == topic;
            if is_ours && header.seq < chunk.next_seq {
                // Damage before it hits events that were not asked for.
                gap = None;
            }
            if is_ours && header.seq >= chunk.next_seq {
                if chunk.is_full(limit) {
                    return Ok(());
                }
                if let Some(at) = gap.take() {
                    let last_seq = header.seq - 1;
                    if in_hole(at, offset) {
                        if last_seq >= chunk.next_seq {
                            return self.end_before(topic, piece, from, last_seq, &holes, chunk);
                        }
                    } else {
                        self.lose(topic, piece, at, chunk, last_seq);
                    }
                }
                if header.seq > chunk.next_seq {
                    chunk.skip_to(header.seq, MissingReason::Cleaned);
                }
                if in_hole(offset, offset + frame_length) {
                    return self.end_before(topic, piece, from, header.seq, &holes, chunk);
                }
                if record::body_checks(&header, &buffer[offset..]) {
                    if chunk.buffers.is_empty() {
                        chunk.buffers.push(buffer.clone());
                    }
                    chunk.records.push(RecordPlace { buffer: 0, offset: offset as u32 });
                    chunk.bytes += frame_length;
                    chunk.next_seq = header.seq + 1;
                } else {
                    self.lose(topic, piece, offset, chunk, header.seq);
                }
            }
            offset += frame_length;
        }
        if let Some(at) = gap {
            if in_hole(at, length) && chunk.next_seq <= piece.last_seq {
                return self.end_before(topic, piece, from, piece.last_seq, &holes, chunk);
            }
            self.lose(topic, piece, at, chunk, piece.last_seq);
        }
        if chunk.next_seq <= piece.last_seq {
            chunk.skip_to(piece.last_seq + 1, MissingReason::Cleaned);
        }
        Ok(())
    }

    /// Ends a read before events that cannot be read, up to `last_seq`. If it got nowhere, that is an error.
    fn end_before(
        &self,
        topic: u32,
        piece: &Piece,
        from: u64,
        last_seq: u64,
        holes: &Holes,
        chunk: &Chunk,
    ) -> Result<(), ReadError> {
        if chunk.next_seq > from {
            return Ok(());
        }
        Err(self.unreadable_events(topic, piece, from, last_seq, holes.ranges(), holes.error()))
    }

    fn unreadable_events(
        &self,
        topic: u32,
        piece: &Piece,
        first_seq: u64,
        last_seq: u64,
        bytes: &[Range<u64>],
        source: io::Error,
    ) -> ReadError {
        let position = bytes.first().map_or(u64::from(piece.position), |range| range.start);
        let error =
            ReadError::Unreadable { first_seq, last_seq, file: piece.segment.name(), position, source };
        self.note_unreadable(topic, bytes, &error);
        error
    }

    /// Counts the seqs up to `last_seq` as damaged, and names the place. Damage that hit none of this topic's seqs is left to
    /// the readers of the topic that it hit, and to `verify`.
    fn lose(&self, topic: u32, piece: &Piece, offset: usize, chunk: &mut Chunk, last_seq: u64) {
        if chunk.next_seq > last_seq {
            return;
        }
        let position = u64::from(piece.position) + offset as u64;
        self.report_fault(Fault {
            topic: self.topic_name(topic),
            seq: Some(chunk.next_seq),
            last_seq: Some(last_seq),
            ..Fault::new(piece.segment.name(), position, FaultKind::Event)
        });
        chunk.skip_to(last_seq + 1, MissingReason::Corrupt);
    }

    /// Reads the single frame at a position; `None` if it does not check.
    pub(crate) fn read_frame(
        &self,
        segment: &Segment,
        position: u32,
    ) -> Result<Option<(Header, Vec<u8>)>, ReadError> {
        let position = u64::from(position);
        let error = || {
            move |source| {
                let error = segment.read_error(position)(source);
                self.note_read_error(&error);
                error
            }
        };
        let file = segment.file().map_err(error())?;
        let mut frame = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut frame, position).map_err(error())?;
        let Some(header) = Header::checked(&frame[..read], segment.id.salt) else { return Ok(None) };
        frame.resize(header.frame_length(), 0);
        file.read_at(&mut frame[HEADER_BYTES..], position + HEADER_BYTES as u64).map_err(error())?;
        Ok(record::body_checks(&header, &frame).then_some((header, frame)))
    }
}

/// The next offset with a header that checks, or the end.
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
