//! Reads the topics of a pattern as one sequence ([`crate::merged`]): merges the topics by commit time, with a small read-ahead
//! per topic.
//!
//! **Invariants:** the key of a topic in the heap `due` is the commit time of the topic's next event, or an earlier time. A read
//! returns an event only if its commit time is complete (no more events with that time or an earlier one can be added), so events
//! that are published later have later positions.

use super::feed::Feed;
use super::position::first_after;
use crate::backend::{BoxFuture, PullLimit};
use crate::engine::{EventHead, EventScanner, StoredEvent, TopicId, Visit};
use crate::error::ReadError;
use crate::local::reading::Reading;
use crate::local::run_reads::run_reads;
use crate::merged::{BusPosition, MergedChunk, MergedQuery, MergedRead, MergedReader, More};
use prombus_protocol::{Body, Topic};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The approximate size of the read-ahead of a reader, all topics together.
const AHEAD_BYTES: usize = 4 << 20;
/// The maximum size of the read-ahead of one topic.
const TOPIC_AHEAD_BYTES: usize = 256 << 10;
/// When the read-ahead of all topics together exceeds this size, some of it is dropped.
const AHEAD_BYTES_MAX: usize = 2 * AHEAD_BYTES;
/// The approximate maximum size of the events that one read examines. If there is a filter, the read may return none of them.
const EXAMINED_BYTES_MAX: usize = 1 << 20;
/// How often an incomplete commit time is checked before the reader closes it explicitly. Usually the clock advances and closes
/// it, but the clock may stand still.
const CHECKS_BEFORE_CLOSING: u32 = 5;
/// The maximum number of topics that one poll examines before it lets other tasks run.
const TOPIC_CHECKS_MAX: u32 = 256;

/// The lookup of the first seq of a topic, while it is pending.
type Locating = (TopicId, BoxFuture<'static, Result<u64, ReadError>>);

pub(in crate::local) struct LocalMergedReader {
    reading: Arc<Reading>,
    query: MergedQuery,
    /// The position after the last event that was examined.
    position: BusPosition,
    sources: HashMap<TopicId, MergedTopic>,
    /// The heap of topics that may have events to read, by the commit time of the next event.
    due: BinaryHeap<Reverse<(i64, u32)>>,
    /// The size of the read-ahead of all topics.
    ahead_bytes: usize,
    scanner: Box<dyn EventScanner>,
    locating: Option<Locating>,
    /// Tells which topics have new events. A reader that is not live needs it as well: it waits for events that were appended
    /// before it was opened and are not durable yet.
    feed: Arc<Feed>,
    /// The last commit time whose events the reader returns; `i64::MAX` if the reader is live.
    end_ms: i64,
    /// The last commit time that was found incomplete, and how often it was checked.
    incomplete: (i64, u32),
}

/// A topic that is read.
struct MergedTopic {
    topic: Topic,
    /// The next seq to read; looked up when it is needed.
    next_seq: Option<u64>,
    /// The read-ahead, in seq order.
    ahead: VecDeque<Ahead>,
    /// The keys and bodies of the read-ahead.
    bytes: Vec<u8>,
    /// The topic is in the heap `due`.
    is_due: bool,
}

/// An event that was read ahead.
struct Ahead {
    head: EventHead,
    /// Where its key is in [`MergedTopic::bytes`].
    key: Option<Range<usize>>,
    /// Where its body is in [`MergedTopic::bytes`].
    body: Range<usize>,
}

impl MergedTopic {
    fn new(topic: Topic) -> Self {
        Self { topic, next_seq: None, ahead: VecDeque::new(), bytes: Vec::new(), is_due: false }
    }

    fn push(&mut self, event: &StoredEvent<'_>) {
        let mut put = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            start..self.bytes.len()
        };
        let (key, body) = (event.key.map(&mut put), put(event.body));
        self.ahead.push_back(Ahead { head: EventHead::from(event), key, body });
    }

    fn event<'a>(&'a self, ahead: &Ahead) -> StoredEvent<'a> {
        StoredEvent {
            seq: ahead.head.seq,
            id: ahead.head.id,
            ts: ahead.head.ts,
            commit_ms: ahead.head.commit_ms,
            key: ahead.key.clone().map(|key| &self.bytes[key]),
            body: &self.bytes[ahead.body.clone()],
            tombstone: false,
            client_id: ahead.head.is_client_id,
        }
    }

    /// Drops the read-ahead of the topic and returns its size. Its events will be read again when they are needed.
    fn forget(&mut self) -> usize {
        if let Some(first) = self.ahead.front() {
            self.next_seq = Some(first.head.seq);
        }
        self.ahead = VecDeque::new();
        std::mem::take(&mut self.bytes).len()
    }
}

impl LocalMergedReader {
    pub(in crate::local) fn new(reading: Arc<Reading>, query: MergedQuery) -> Result<Self, ReadError> {
        reading.commits.check_open()?;
        // The feed is created before the topics are listed: a topic that is created in between is in both.
        let feed = reading.waiting_readers.feeds.feed(query.pattern.clone());
        let closed_ms = match query.after {
            Some(_) => reading.engine.commit_times(i64::MIN).closed_ms,
            None => reading.close_commit_time(),
        };
        let newest = BusPosition::after_time(closed_ms);
        let position = query.after.unwrap_or(newest);
        // Events may already have the commit time that is still open now.
        let end_ms = closed_ms.saturating_add(1);
        if position.commit_ms > end_ms {
            return Err(ReadError::UnknownPosition);
        }
        let mut merged = Self {
            position,
            sources: HashMap::new(),
            due: BinaryHeap::new(),
            ahead_bytes: 0,
            scanner: reading.engine.scanner(),
            locating: None,
            feed,
            end_ms: if query.is_live { i64::MAX } else { end_ms },
            incomplete: (i64::MIN, 0),
            reading,
            query,
        };
        // Even if `after` is the newest position, there may be events after it: those with the commit time that is still open.
        let is_due = merged.query.after.is_some();
        for (id, topic) in merged.reading.registry.topics_matching(&merged.query.pattern) {
            merged.add(id, topic, is_due);
        }
        merged.feed.follow_only_added();
        Ok(merged)
    }

    fn add(&mut self, id: TopicId, topic: Topic, is_due: bool) {
        let known = self.sources.entry(id).or_insert_with(|| MergedTopic::new(topic));
        if is_due && !std::mem::replace(&mut known.is_due, true) {
            self.due.push(Reverse((self.position.commit_ms, id.number())));
        }
        self.feed.add_topic(id);
    }

    /// Applies the changes of the feed.
    fn apply_feed(&mut self) {
        let changes = self.feed.take();
        for (id, topic) in changes.created {
            self.add(id, topic, true);
        }
        for id in changes.topics {
            if let Some(source) = self.sources.get_mut(&id)
                && !std::mem::replace(&mut source.is_due, true)
            {
                self.due.push(Reverse((self.position.commit_ms, id.number())));
            }
        }
    }

    /// Fills the read-ahead of a topic, if it is empty. Returns the commit time of the topic's next event; `None` if it has none.
    fn poll_refill(
        &mut self,
        id: TopicId,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<i64>, ReadError>> {
        let piece_bytes = (AHEAD_BYTES / self.due.len().max(1)).min(TOPIC_AHEAD_BYTES);
        let Some(source) = self.sources.get_mut(&id) else { return Poll::Ready(Ok(None)) };
        if let Some(first) = source.ahead.front() {
            return Poll::Ready(Ok(Some(first.head.commit_ms)));
        }
        self.ahead_bytes -= source.forget();
        let mut next_seq = match source.next_seq {
            Some(seq) => seq,
            None => ready!(poll_first(&mut self.locating, &self.reading, id, self.position, context))?,
        };
        source.next_seq = Some(next_seq);
        let last_seq = self.reading.engine.last_seq(id);
        self.scanner.read_ahead(piece_bytes);
        while source.ahead.is_empty() && next_seq <= last_seq {
            let scanned = self.scanner.poll_scan(id, next_seq, last_seq, context, &mut |event| {
                let is_full = !source.ahead.is_empty()
                    && source.bytes.len() + event.body.len() + event.key.map_or(0, <[u8]>::len) > piece_bytes;
                if is_full {
                    return Visit::Stop;
                }
                source.push(event);
                Visit::Next
            });
            let scanned = ready!(scanned);
            // Frees the scanner's own read-ahead, so that this reader does not keep recent batches in memory.
            self.scanner.rest();
            let scanned = scanned?;
            if scanned.next_seq <= next_seq {
                break;
            }
            next_seq = scanned.next_seq;
            source.next_seq = Some(next_seq);
        }
        self.ahead_bytes += source.bytes.len();
        let next_ms = source.ahead.front().map(|first| first.head.commit_ms);
        if self.ahead_bytes > AHEAD_BYTES_MAX {
            self.drop_latest_ahead(id);
        }
        Poll::Ready(Ok(next_ms))
    }

    /// Drops the read-ahead of topics until at most half of the limit is used, beginning with the topics whose next events have
    /// the latest commit times. Does not drop that of the topic `except`.
    fn drop_latest_ahead(&mut self, except: TopicId) {
        let next_ms = |source: &MergedTopic| source.ahead.front().map(|first| first.head.commit_ms);
        let full = self.sources.iter().filter(|(id, _)| **id != except);
        let mut full: Vec<_> = full.filter_map(|(id, source)| Some((next_ms(source)?, *id))).collect();
        full.sort_unstable_by_key(|&(ms, id)| Reverse((ms, id.number())));
        for (_, id) in full {
            if self.ahead_bytes <= AHEAD_BYTES_MAX / 2 {
                break;
            }
            if let Some(source) = self.sources.get_mut(&id) {
                self.ahead_bytes -= source.forget();
            }
        }
    }

    /// Returns the commit time and the topic of the next event; `None` if there is none. The topic stays in the heap. After many
    /// topics were examined, this is pending and wakes itself, so that other tasks can run.
    fn poll_next_topic(
        &mut self,
        checks: &mut u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<(i64, TopicId)>, ReadError>> {
        while let Some(&Reverse((ms, number))) = self.due.peek() {
            *checks += 1;
            if *checks > TOPIC_CHECKS_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let id = TopicId::from_number(number);
            let next_ms = match ready!(self.poll_refill(id, context)) {
                // The topic and its events were deleted.
                Err(ReadError::UnknownTopic(_)) => {
                    if let Some(mut source) = self.sources.remove(&id) {
                        self.ahead_bytes -= source.forget();
                    }
                    None
                }
                refilled => refilled?,
            };
            match next_ms {
                Some(next_ms) if next_ms <= ms => return Poll::Ready(Ok(Some((ms, id)))),
                Some(next_ms) => {
                    self.due.pop();
                    self.due.push(Reverse((next_ms, number)));
                }
                None => {
                    self.due.pop();
                    if let Some(source) = self.sources.get_mut(&id) {
                        source.is_due = false;
                    }
                }
            }
        }
        Poll::Ready(Ok(None))
    }

    fn complete_ms(&mut self, wanted_ms: i64) -> i64 {
        let closing =
            if self.incomplete >= (wanted_ms, CHECKS_BEFORE_CLOSING) { wanted_ms } else { i64::MIN };
        let complete_ms = self.reading.engine.commit_times(closing).complete_ms;
        self.incomplete = match self.incomplete {
            _ if complete_ms >= wanted_ms => (i64::MIN, 0),
            (ms, count) if ms == wanted_ms => (ms, count.saturating_add(1)),
            _ => (wanted_ms, 1),
        };
        complete_ms
    }
}

/// Whether the chunk has no room for another event of this size.
fn is_full(chunk: &MergedChunk, size: usize, limit: PullLimit) -> bool {
    chunk.places.len() >= limit.events.max(1) as usize
        || (!chunk.places.is_empty() && chunk.events.byte_count() + size > limit.bytes)
}

/// Looks up the first seq of a topic after a position. If the lookup is pending, it is kept in `locating` for the next call.
fn poll_first(
    locating: &mut Option<Locating>,
    reading: &Reading,
    id: TopicId,
    position: BusPosition,
    context: &mut Context<'_>,
) -> Poll<Result<u64, ReadError>> {
    if locating.as_ref().is_none_or(|(topic, _)| *topic != id) {
        let engine = Arc::clone(&reading.engine);
        *locating = Some((id, Box::pin(async move { first_after(&*engine, id, position).await })));
    }
    let Some((_, lookup)) = locating else { return Poll::Pending };
    let first = ready!(lookup.as_mut().poll(context));
    *locating = None;
    Poll::Ready(first)
}

impl LocalMergedReader {
    fn poll_read(
        &mut self,
        limit: PullLimit,
        context: &mut Context<'_>,
    ) -> Poll<Result<MergedChunk, ReadError>> {
        self.reading.commits.check_open()?;
        if let Some(reason) = self.reading.commits.unavailable() {
            return Poll::Ready(Err(reason.clone().into()));
        }
        // Must be read before the topics are examined, so that all events up to this time are found in the topics.
        let mut complete_ms = self.reading.engine.commit_times(i64::MIN).complete_ms;
        self.apply_feed();
        let mut chunk = MergedChunk {
            events: Default::default(),
            places: Vec::new(),
            position: self.position,
            more: More::Now,
        };
        let (mut examined_bytes, mut checks) = (0, 0);
        loop {
            let next = match self.poll_next_topic(&mut checks, context) {
                // Returns the events that were read; the next read waits.
                Poll::Pending if self.position > chunk.position => break,
                Poll::Pending => return Poll::Pending,
                // Returns the events before the unreadable one; the next read returns the error.
                Poll::Ready(Err(error)) if error.is_unreadable() && self.position > chunk.position => break,
                Poll::Ready(next) => next?,
            };
            let Some((ms, id)) = next.filter(|(ms, _)| *ms <= self.end_ms) else {
                chunk.more = More::Later;
                break;
            };
            if ms > complete_ms {
                if !chunk.places.is_empty() {
                    break;
                }
                complete_ms = self.complete_ms(ms);
                if ms > complete_ms {
                    chunk.more = More::Soon;
                    break;
                }
                // Before this time was complete, other topics may have received events with this time or an earlier one.
                self.apply_feed();
                continue;
            }
            let Some(source) = self.sources.get_mut(&id) else { break };
            let Some(first) = source.ahead.front() else { break };
            let size = first.body.len() + first.key.as_ref().map_or(0, Range::len);
            if is_full(&chunk, size, limit) || examined_bytes >= EXAMINED_BYTES_MAX {
                break;
            }
            examined_bytes += size;
            let place = BusPosition { commit_ms: ms, topic: id.number(), seq: first.head.seq };
            let event = source.event(first);
            let key = || event.key.and_then(|key| std::str::from_utf8(key).ok());
            let filter = self.query.filter.as_ref();
            if filter.is_none_or(|filter| filter.matches(key(), &Body::new(event.body))) {
                chunk.events.push(&source.topic, &event);
                chunk.places.push(place);
            }
            source.ahead.pop_front();
            self.position = place;
        }
        chunk.position = self.position;
        Poll::Ready(Ok(chunk))
    }
}

impl MergedReader for LocalMergedReader {
    fn read(mut self: Box<Self>, limit: PullLimit) -> BoxFuture<'static, MergedRead> {
        let engine = Arc::clone(&self.reading.engine);
        let reading = async move {
            let read = poll_fn(|context| self.poll_read(limit, context)).await;
            Ok::<_, ReadError>((Some(self as Box<dyn MergedReader>), read))
        };
        Box::pin(async move { run_reads(&*engine, reading).await.unwrap_or_else(|error| (None, Err(error))) })
    }

    fn position(&self) -> BusPosition {
        self.position
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.reading.commits.is_closed() || self.reading.commits.unavailable().is_some() {
            return Poll::Ready(());
        }
        self.feed.poll(context)
    }
}
