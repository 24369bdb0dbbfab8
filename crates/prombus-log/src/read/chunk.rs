//! The limit of a read, and its result.

use crate::frame_scan::PIECE_BYTES;
use crate::record::{self, Event, trusted_event};
use bytes::Bytes;

/// The limit of a read. At least one event is read, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// The maximum number of events.
    pub events: usize,
    /// The read ends when its records have this size or more. So the last record may exceed it.
    pub bytes: usize,
}

impl Default for ReadLimit {
    fn default() -> Self {
        Self { events: usize::MAX, bytes: PIECE_BYTES }
    }
}

/// Why seqs are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingReason {
    /// Retention, compaction or a deletion removed their events.
    Cleaned,
    /// Their events are damaged.
    Corrupt,
}

/// Seqs that a read skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The first skipped seq.
    pub first_seq: u64,
    /// The last skipped seq.
    pub last_seq: u64,
    /// Why these seqs are missing.
    pub reason: MissingReason,
}

/// Where a record is in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPlace {
    /// The index of the buffer.
    pub(super) buffer: u32,
    /// Where the record starts in the buffer.
    pub(super) offset: u32,
}

/// The events of one read. Reuse a chunk for many reads: it keeps its memory.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The bytes of the records.
    pub(super) buffers: Vec<Bytes>,
    /// The records of the events, in seq order.
    pub(super) records: Vec<RecordPlace>,
    missing: Vec<Missing>,
    /// The size of the records.
    pub(super) bytes: usize,
    /// The first seq that was not read.
    pub(super) next_seq: u64,
}

impl Chunk {
    /// The events, in seq order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> + '_ {
        self.records
            .iter()
            .map(|place| trusted_event(&self.buffers[place.buffer as usize][place.offset as usize..]))
    }

    /// The event at an index below [`len`](Self::len).
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn event(&self, at: usize) -> Event<'_> {
        let place = self.records[at];
        trusted_event(&self.buffers[place.buffer as usize][place.offset as usize..])
    }

    /// Drops the events, so that their buffers can be reused. The chunk keeps the memory of its lists.
    pub fn forget(&mut self) {
        self.clear(0);
    }

    /// The number of events.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the chunk contains no event.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The missing seqs in the range that was read.
    #[inline]
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// The seq at which the next read continues.
    #[inline]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    #[inline]
    pub(super) fn clear(&mut self, from: u64) {
        self.buffers.clear();
        self.records.clear();
        self.missing.clear();
        self.bytes = 0;
        self.next_seq = from;
    }

    #[inline]
    pub(super) fn is_full(&self, limit: ReadLimit) -> bool {
        !self.records.is_empty() && (self.records.len() >= limit.events || self.bytes >= limit.bytes)
    }

    /// Adds the events of the runs in `buffers`, from seq `from` on and up to the limit.
    #[inline(never)]
    pub(super) fn take_runs(&mut self, from: u64, limit: ReadLimit) {
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

    #[inline]
    pub(super) fn skip_to(&mut self, seq: u64, reason: MissingReason) {
        if seq > self.next_seq {
            self.missing.push(Missing { first_seq: self.next_seq, last_seq: seq - 1, reason });
            self.next_seq = seq;
        }
    }
}
