//! Reads a topic from a seq on: from the tail cache if the seq is still in memory, otherwise from the files in large
//! pieces. Neither delays the writer. Every event read from a file is checked; damaged events are left out and
//! reported.
//!
//! **Invariant:** unreadable events are never skipped. A read ends before them. A read that starts with them fails with an
//! error that contains their seqs.

use crate::error::ReadError;
use crate::frame_scan::PIECE_BYTES;
use crate::index::{Entry, EntrySearch};
use crate::read::chunk::{Chunk, MissingReason, ReadLimit};
use crate::read::committed_log::CommittedLog;
use crate::read::read_piece::{Piece, PieceRead};
use crate::record::{self, HEADER_BYTES, Header};
use crate::segment::Segment;
use std::sync::Arc;

/// Parts of a file whose index entries are at most this far apart are read in one piece.
const JOIN_BYTES: u32 = 16 * 1024;
/// A read of a few events uses a run in the tail only if at most this many events of the run precede them, because it
/// has to step over each of these. Otherwise it finds the events faster with the index, in the file.
const WALK_MAX: u64 = 64;
/// A read with at most this byte limit counts as a read of a few events.
const FEW_BYTES: usize = 16 * 1024;

impl CommittedLog {
    /// Reads from a seq on, and records unreadable events.
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
            _ => self.read_and_record(topic, from.max(1), limit, u64::MAX, chunk),
        }
    }

    /// Reads a few events that may be deep inside a long run in the tail. The cost does not grow with their depth in
    /// the run.
    pub(crate) fn read_few(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        // If the file cannot be read, the tail may still contain the events.
        self.read_and_record(topic, from.max(1), limit, WALK_MAX, chunk)
            .or_else(|_| self.read_and_record(topic, from.max(1), limit, u64::MAX, chunk))
    }

    fn read_and_record(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        walk_max: u64,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        let read = self.read_from(topic, from, limit, walk_max, chunk);
        match &read {
            Ok(()) if self.read_errors.is_any() => self.read_errors.note_read(topic, from, chunk.next_seq),
            // A failed read of an index was recorded where it happened.
            Ok(()) | Err(ReadError::UnknownTopic(_) | ReadError::Io { .. }) => {}
            Err(error @ ReadError::Unreadable { .. }) => self.read_errors.note_error(error),
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
        let is_in_tail = self.view().tail.collect(topic, from, limit, walk_max, &mut chunk.buffers);
        if is_in_tail {
            chunk.take_runs(from, limit);
            return Ok(());
        }
        match self.piece_from(topic, from, limit)? {
            Some(piece) => PieceRead { log: self, topic, piece: &piece, from, limit }.read(chunk),
            None => {
                // Everything up to `last_seq` was cleaned away. Events committed since then are left to the next read.
                chunk.skip_to(last_seq + 1, MissingReason::Cleaned);
                Ok(())
            }
        }
    }

    /// The part of a file to read for `from`; `None` if no segment contains `from` or a later seq of the topic.
    fn piece_from(&self, topic: u32, from: u64, limit: ReadLimit) -> Result<Option<Piece>, ReadError> {
        let segments = self.segments();
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

    /// Reads the events of an entry, chunk by chunk, until `look` returns a result.
    pub(super) fn search_entry<R>(
        &self,
        topic: u32,
        entry: &Entry,
        chunk: &mut Chunk,
        mut look: impl FnMut(&Chunk) -> Option<R>,
    ) -> Result<Option<R>, ReadError> {
        let mut seq = entry.first_seq;
        while seq <= entry.last_seq {
            let limit = ReadLimit {
                events: (entry.last_seq - seq + 1) as usize,
                bytes: (entry.end - entry.position) as usize,
            };
            self.read_few(topic, seq, limit, chunk)?;
            if let Some(found) = look(chunk) {
                return Ok(Some(found));
            }
            if chunk.next_seq() == seq {
                break;
            }
            seq = chunk.next_seq();
        }
        Ok(None)
    }

    /// Reads the single frame at a position; `None` if it is damaged.
    pub(crate) fn read_frame(
        &self,
        segment: &Segment,
        position: u32,
    ) -> Result<Option<(Header, Vec<u8>)>, ReadError> {
        let position = u64::from(position);
        let error = || {
            move |source| {
                let error = segment.read_error(position)(source);
                self.read_errors.note_error(&error);
                error
            }
        };
        let file = segment.file().map_err(error())?;
        let mut frame = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut frame, position).map_err(error())?;
        let Some(header) = Header::checked(&frame[..read], segment.id.salt) else { return Ok(None) };
        frame.resize(header.frame_length(), 0);
        file.read_at(&mut frame[HEADER_BYTES..], position + HEADER_BYTES as u64).map_err(error())?;
        Ok(record::is_body_valid(&header, &frame).then_some((header, frame)))
    }
}
