//! Reads events over the network, one piece at a time.
//!
//! A piece is a sequence of events of one topic that are fetched together. A scan is pending until its piece has arrived. Pieces
//! are kept by topic and first seq, so several scans can be pending at the same time, and each finds its own piece.

use super::connection::Connection;
use super::database::RemoteDatabase;
use super::piece::{FetchLimit, Piece, ReadableSeqs};
use crate::engine::{EventScanner, Scanned, StoredEvent, TopicId, Visit};
use crate::error::ReadError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The maximum number of pieces that a scanner keeps or has requested.
const FETCHES_MAX: usize = 64;

pub(super) struct NetworkScanner<D> {
    connection: Arc<Connection<D>>,
    inbox: Arc<Mutex<Inbox>>,
    /// The maximum size of a fetch.
    fetch_bytes: usize,
    /// The number of events and bytes that the reader will still take; `None` if `expect` was not called.
    expected: Option<(usize, usize)>,
    /// The topic and the end of the last piece that was used. If a scan continues there, the reader reads in sequence, and the
    /// following piece is fetched ahead.
    fetched_to: Option<(TopicId, u64)>,
}

/// Requested pieces, and those that have arrived.
#[derive(Default)]
struct Inbox {
    /// The fetches, the oldest first.
    fetches: Vec<Fetch>,
    next_ticket: u64,
    /// The waker of the latest scan that was pending.
    waker: Option<Waker>,
}

struct Fetch {
    /// Identifies the fetch when its response arrives.
    ticket: u64,
    topic: TopicId,
    first_seq: u64,
    /// The piece that begins at `first_seq`; `None` until it has arrived.
    answer: Option<Result<Piece, ReadError>>,
}

impl Inbox {
    /// Adds a fetch and returns its ticket. If there are too many fetches, discards the oldest piece that has arrived and was not
    /// taken.
    fn push(&mut self, topic: TopicId, first_seq: u64, answer: Option<Result<Piece, ReadError>>) -> u64 {
        self.fetches.retain(|fetch| (fetch.topic, fetch.first_seq) != (topic, first_seq));
        if self.fetches.len() >= FETCHES_MAX
            && let Some(oldest) = self.fetches.iter().position(|fetch| fetch.answer.is_some())
        {
            self.fetches.remove(oldest);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.fetches.push(Fetch { ticket, topic, first_seq, answer });
        ticket
    }

    fn answer(&mut self, ticket: u64, answer: Result<Piece, ReadError>) -> Option<Waker> {
        let fetch = self.fetches.iter_mut().find(|fetch| fetch.ticket == ticket)?;
        fetch.answer = Some(answer);
        self.waker.take()
    }

    /// Looks for the piece that begins at a seq: `None` if it was not requested, pending until it has arrived. Removes it if it
    /// has arrived.
    fn take(&mut self, topic: TopicId, first_seq: u64) -> Option<Poll<Result<Piece, ReadError>>> {
        let is_wanted = |fetch: &Fetch| fetch.topic == topic && fetch.first_seq == first_seq;
        let at = self.fetches.iter().position(is_wanted)?;
        match self.fetches[at].answer.take() {
            Some(answer) => {
                self.fetches.remove(at);
                Some(Poll::Ready(answer))
            }
            None => Some(Poll::Pending),
        }
    }
}

impl<D: RemoteDatabase> NetworkScanner<D> {
    pub(super) fn new(connection: Arc<Connection<D>>) -> Self {
        let fetch_bytes = connection.limits.fetch_bytes_max;
        Self { connection, inbox: Arc::default(), fetch_bytes, expected: None, fetched_to: None }
    }

    /// Returns the piece that begins at a seq, and requests it if necessary.
    fn poll_piece(
        &self,
        topic: TopicId,
        seq: u64,
        limit: FetchLimit,
        context: &Context<'_>,
    ) -> Poll<Result<Piece, ReadError>> {
        let mut inbox = self.inbox.lock();
        match inbox.take(topic, seq) {
            Some(Poll::Ready(answer)) => return Poll::Ready(answer),
            Some(Poll::Pending) => inbox.waker = Some(context.waker().clone()),
            None => {
                if let Some(piece) = self.connection.tail(topic, seq, limit) {
                    return Poll::Ready(Ok(piece));
                }
                inbox.waker = Some(context.waker().clone());
                let ticket = inbox.push(topic, seq, None);
                drop(inbox);
                self.request(topic, seq, limit, ticket);
            }
        }
        Poll::Pending
    }

    /// Requests the piece after this one in advance, if the reader has said that it will take more than this piece, or reads
    /// pieces in sequence.
    fn fetch_ahead(&mut self, topic: TopicId, piece: &Piece, limit: FetchLimit) {
        let before = self.fetched_to.replace((topic, piece.last_seq));
        let is_wanted = match self.expected {
            Some((events, bytes)) => events > piece.events.len() && bytes > piece.bytes(),
            None => before.is_some_and(|(of, to)| of == topic && to + 1 >= piece.first_seq),
        };
        let next = piece.last_seq + 1;
        if !is_wanted || next > limit.last_seq || self.connection.leader.lock().tail.contains(topic, next) {
            return;
        }
        let limit = FetchLimit { events: limit.events.saturating_sub(piece.events.len()), ..limit };
        let mut inbox = self.inbox.lock();
        if inbox.fetches.iter().any(|fetch| fetch.topic == topic && fetch.first_seq == next) {
            return;
        }
        let ticket = inbox.push(topic, next, None);
        drop(inbox);
        self.request(topic, next, limit, ticket);
    }

    fn request(&self, topic: TopicId, seq: u64, limit: FetchLimit, ticket: u64) {
        let database = Arc::clone(&self.connection.database);
        let inbox = Arc::downgrade(&self.inbox);
        let fetch = async move { database.fetch(topic, seq, limit).await };
        self.connection.read(fetch, move |answer| {
            let Some(inbox) = inbox.upgrade() else { return };
            let waker = inbox.lock().answer(ticket, answer);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
    }

    /// Passes the events of a piece to `visit`, and keeps those that were not visited.
    fn visit(
        &self,
        topic: TopicId,
        (from, to): (u64, u64),
        mut piece: Piece,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Scanned {
        let to = to.min(piece.last_seq);
        let mut scanned = Scanned { next_seq: from, ..Scanned::default() };
        let mut is_stopped = false;
        while let Some((seq, event)) = piece.events.front().filter(|(seq, _)| *seq <= to) {
            let seq = *seq;
            if seq >= from {
                scanned.cleaned += seq - scanned.next_seq;
                scanned.next_seq = seq;
                if visit(&event.at(seq)) == Visit::Stop {
                    is_stopped = true;
                    break;
                }
                scanned.next_seq = seq + 1;
            }
            piece.events.pop_front();
        }
        if !is_stopped {
            scanned.cleaned += to + 1 - scanned.next_seq;
            scanned.next_seq = to + 1;
            // The seqs of damaged events are unknown, so they are counted when a scan reaches its end, one time per piece.
            let corrupt = std::mem::take(&mut piece.corrupt).min(scanned.cleaned);
            self.connection.figures.count_corrupt(corrupt);
            scanned.cleaned -= corrupt;
            scanned.corrupt = corrupt;
        }
        piece.first_seq = scanned.next_seq;
        if piece.first_seq <= piece.last_seq {
            self.inbox.lock().push(topic, piece.first_seq, Some(Ok(piece)));
        }
        scanned
    }
}

impl<D: RemoteDatabase> EventScanner for NetworkScanner<D> {
    fn poll_scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        context: &mut Context<'_>,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Poll<Result<Scanned, ReadError>> {
        let ReadableSeqs { first_seq, last_seq } = match self.connection.leader.lock().readable(topic) {
            Ok(readable) => readable,
            Err(error) => return Poll::Ready(Err(error)),
        };
        // Events below the first seq have expired, even if the database still has them.
        let (from, start) = (from.max(1), from.max(1).max(first_seq));
        let to = to.min(last_seq);
        let cleaned = start.min(to.saturating_add(1)).saturating_sub(from);
        if start > to {
            return Poll::Ready(Ok(Scanned { next_seq: from + cleaned, cleaned, corrupt: 0 }));
        }
        let (expected, bytes) = self.expected.unwrap_or((usize::MAX, usize::MAX));
        let events = if from == to { 1 } else { expected.max(1) };
        let limit = FetchLimit { last_seq, events, bytes: self.fetch_bytes.min(bytes).max(1) };
        let piece = match std::task::ready!(self.poll_piece(topic, start, limit, context)) {
            Ok(piece) => piece,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if events > 1 {
            self.fetch_ahead(topic, &piece, limit);
        }
        let mut scanned = self.visit(topic, (start, to), piece, visit);
        scanned.cleaned += cleaned;
        Poll::Ready(Ok(scanned))
    }

    fn is_in_memory(&self, topic: TopicId, from: u64) -> bool {
        self.connection.leader.lock().tail.contains(topic, from)
    }

    fn read_ahead(&mut self, bytes: usize) {
        self.fetch_bytes = bytes.clamp(1, self.connection.limits.fetch_bytes_max);
    }

    fn expect(&mut self, events: usize, bytes: usize) {
        self.expected = Some((events, bytes));
    }

    /// Frees the pieces that have arrived. Fetches in flight are kept, because the scans that wait for them will be repeated.
    fn rest(&mut self) {
        self.inbox.lock().fetches.retain(|fetch| fetch.answer.is_none());
    }
}
