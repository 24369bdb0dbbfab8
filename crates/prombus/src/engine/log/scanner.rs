//! Reads events of the log in chunks of a megabyte, and passes them to the caller one by one.

use super::first_seqs::FirstSeqs;
use crate::engine::{EventScanner, Scanned, StoredEvent, TopicId, Visit};
use crate::error::ReadError;
use prombus_log::{Chunk, Log, MissingReason, ReadLimit};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The size of a read, unless [`EventScanner::read_ahead`] sets another one.
const READ_BYTES: usize = 1 << 20;

pub(super) struct LogScanner {
    log: Log,
    firsts: Arc<FirstSeqs>,
    /// The topic of the chunk; `None` while the chunk has nothing to visit.
    topic: Option<TopicId>,
    chunk: Chunk,
    /// The index of the next event of the chunk. The events before it were visited.
    at: usize,
    /// The size of a read.
    read_bytes: usize,
    /// Whether the whole log is in memory.
    is_ram: bool,
}

impl LogScanner {
    pub(super) fn new(log: Log, firsts: Arc<FirstSeqs>, is_ram: bool) -> Self {
        Self { log, firsts, topic: None, chunk: Chunk::default(), at: 0, read_bytes: READ_BYTES, is_ram }
    }

    /// Whether the chunk covers this seq: it contains the event, or shows that there is none. If so, moves to the
    /// seq.
    fn continues_at(&mut self, topic: TopicId, from: u64) -> bool {
        if self.topic != Some(topic) || self.at >= self.chunk.len() || from >= self.chunk.next_seq() {
            return false;
        }
        while self.at < self.chunk.len() && self.chunk.event(self.at).seq < from {
            self.at += 1;
        }
        let Some(at) = Some(self.at).filter(|&at| at < self.chunk.len()) else { return false };
        // Between its events the chunk covers every seq, but before its first event only the seqs that it lists as
        // missing.
        let is_missing =
            |seq| self.chunk.missing().iter().any(|gap| (gap.first_seq..=gap.last_seq).contains(&seq));
        self.chunk.event(at).seq == from
            || (at > 0 && self.chunk.event(at - 1).seq < from)
            || (at == 0 && is_missing(from))
    }

    /// Adds the missing seqs from `from` to `to` to `scanned`.
    fn count_missing(&self, from: u64, to: u64, scanned: &mut Scanned) {
        for gap in self.chunk.missing() {
            let (first, last) = (gap.first_seq.max(from), gap.last_seq.min(to));
            if first <= last {
                match gap.reason {
                    MissingReason::Cleaned => scanned.cleaned += last - first + 1,
                    MissingReason::Corrupt => scanned.corrupt += last - first + 1,
                }
            }
        }
    }

    fn scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Result<Scanned, ReadError> {
        let first = self.firsts.get(topic);
        if from < first && from <= to {
            let last_cut = to.min(first - 1);
            let cut = last_cut - from + 1;
            if last_cut == to {
                return Ok(Scanned { next_seq: to + 1, cleaned: cut, corrupt: 0 });
            }
            let mut scanned = self.scan(topic, first, to, visit)?;
            scanned.cleaned += cut;
            return Ok(scanned);
        }
        if !self.continues_at(topic, from) {
            self.topic = None;
            self.at = 0;
            // A single event does not justify a read of a megabyte.
            let bytes = if from == to { 1 } else { self.read_bytes };
            let events = if from == to { 1 } else { usize::MAX };
            self.log.read(topic, from, ReadLimit { events, bytes }, &mut self.chunk)?;
            self.topic = Some(topic);
        }
        let mut next_seq = from;
        while self.at < self.chunk.len() {
            let event = self.chunk.event(self.at);
            if event.seq > to {
                break;
            }
            if visit(&event) == Visit::Stop {
                let mut scanned = Scanned { next_seq: event.seq, ..Scanned::default() };
                self.count_missing(from, event.seq, &mut scanned);
                return Ok(scanned);
            }
            next_seq = event.seq + 1;
            self.at += 1;
        }
        if self.at == self.chunk.len() {
            next_seq = self.chunk.next_seq().min(to + 1).max(next_seq);
        } else {
            // The next event of the chunk is after `to`, so the rest of the range has no events.
            next_seq = next_seq.max(self.chunk.event(self.at).seq.min(to + 1));
        }
        let mut scanned = Scanned { next_seq, ..Scanned::default() };
        if next_seq > from {
            self.count_missing(from, next_seq - 1, &mut scanned);
        }
        if self.at == self.chunk.len() {
            // All events of the chunk were visited. Releases it, so that the reader does not keep the batches that it
            // refers to in memory.
            self.rest();
        }
        Ok(scanned)
    }
}

impl EventScanner for LogScanner {
    fn poll_scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        _context: &mut Context<'_>,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Poll<Result<Scanned, ReadError>> {
        Poll::Ready(self.scan(topic, from, to, visit))
    }

    fn is_in_memory(&self, topic: TopicId, from: u64) -> bool {
        self.is_ram || self.log.is_in_memory(topic, from.max(self.firsts.get(topic)))
    }

    fn read_ahead(&mut self, bytes: usize) {
        self.read_bytes = bytes.clamp(1, READ_BYTES);
    }

    fn rest(&mut self) {
        self.topic = None;
        self.at = 0;
        self.chunk.forget();
    }
}
