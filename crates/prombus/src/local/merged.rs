//! Reads the topics of a pattern as one sequence ([`crate::merged`]): a merge of the topics by commit time, each read ahead a
//! little.
//!
//! **Invariants:** in the heap, the key of a topic is the commit time of its next event or an earlier time. Every event that a
//! read returns is complete, so the places of later events come after it.

use super::Local;
use super::feed::Feed;
use crate::backend::{PullLimit, event_id_of};
use crate::delivery::{Position, SourceId};
use crate::error::ReadError;
use crate::merged::{BusPosition, MergedChunk, MergedQuery, MergedReader, More};
use crate::store::{EventHead, Scanner, StoredEvent, TopicId, Visit};
use prombus_protocol::{Body, Pattern, Start, Topic};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What all topics of a reader together have read ahead, about.
const AHEAD_BYTES: usize = 4 << 20;
/// What one topic reads ahead at most.
const TOPIC_AHEAD_BYTES: usize = 256 << 10;
/// What a topic read ahead is dropped when all together have more than this.
const AHEAD_BYTES_MAX: usize = 2 * AHEAD_BYTES;
/// The most bytes of events that one read examines; with a filter it may return none of them.
const LOOKED_AT_BYTES: usize = 4 << 20;
/// How often an event that is not complete is asked for before its time is closed: the clock may stand still.
const PATIENCE: u32 = 5;
/// By how much readers that start at the end may put commit times ahead of the clock.
const LEAD_MS: i64 = 50;

pub(super) struct Merged {
    local: Arc<Local>,
    query: MergedQuery,
    position: BusPosition,
    sources: HashMap<TopicId, Source>,
    /// Topics that may have something to read, by the commit time of it.
    due: BinaryHeap<Reverse<(i64, u32)>>,
    ahead_bytes: usize,
    scanner: Box<dyn Scanner>,
    /// Says which topics have more: also a reader that is not live waits for what was appended before it and is not durable.
    feed: Arc<Feed>,
    /// Where a reader that is not live ends.
    end_ms: i64,
    /// The commit time that was not complete, and how often.
    incomplete: (i64, u32),
}

struct Source {
    topic: Topic,
    /// The next seq to read; unknown until it is needed.
    next_seq: Option<u64>,
    ahead: VecDeque<Ahead>,
    bytes: Vec<u8>,
    is_due: bool,
}

/// An event that was read ahead.
struct Ahead {
    head: EventHead,
    key: Option<Range<usize>>,
    body: Range<usize>,
}

impl Source {
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

    /// Forgets what was read ahead; it is read again when it is due.
    fn forget(&mut self) -> usize {
        if let Some(first) = self.ahead.front() {
            self.next_seq = Some(first.head.seq);
        }
        self.ahead = VecDeque::new();
        std::mem::take(&mut self.bytes).len()
    }
}

impl Merged {
    pub(super) fn new(local: Arc<Local>, query: MergedQuery) -> Result<Self, ReadError> {
        local.check_open()?;
        // First the feed, then the list: a topic that is made in between is in both.
        let feed = local.arrivals.feed(query.pattern.clone());
        let closed_ms = match query.after {
            Some(_) => local.store.commit_times(i64::MIN).closed_ms,
            None => local.close_now(),
        };
        let newest = BusPosition::after_time(closed_ms);
        let position = query.after.unwrap_or(newest);
        // The time that is open now can have events.
        let end_ms = closed_ms.saturating_add(1);
        if position.commit_ms > end_ms {
            return Err(ReadError::UnknownPosition);
        }
        let mut merged = Self {
            position,
            sources: HashMap::new(),
            due: BinaryHeap::new(),
            ahead_bytes: 0,
            scanner: local.store.scanner(),
            feed,
            end_ms: if query.is_live { i64::MAX } else { end_ms },
            incomplete: (i64::MIN, 0),
            local,
            query,
        };
        // A place may be the newest there is and still have events after it: those of the time that is open.
        let is_due = merged.query.after.is_some();
        for (id, topic) in merged.local.topics_matching(&merged.query.pattern) {
            merged.add(id, topic, is_due);
        }
        merged.feed.narrow();
        Ok(merged)
    }

    fn add(&mut self, id: TopicId, topic: Topic, is_due: bool) {
        let known = self.sources.entry(id).or_insert_with(|| Source::new(topic));
        if is_due && !std::mem::replace(&mut known.is_due, true) {
            self.due.push(Reverse((self.position.commit_ms, id.number())));
        }
        self.feed.want(id);
    }

    /// Takes in what the feed told.
    fn take_news(&mut self) {
        let news = self.feed.take();
        for (id, topic) in news.made {
            self.add(id, topic, true);
        }
        for id in news.topics {
            if let Some(source) = self.sources.get_mut(&id)
                && !std::mem::replace(&mut source.is_due, true)
            {
                self.due.push(Reverse((self.position.commit_ms, id.number())));
            }
        }
    }

    /// Reads a topic ahead. Answers the commit time of its next event; `None` when there is none.
    fn refill(&mut self, id: TopicId) -> Result<Option<i64>, ReadError> {
        let piece_bytes = (AHEAD_BYTES / self.due.len().max(1)).min(TOPIC_AHEAD_BYTES);
        let Some(source) = self.sources.get_mut(&id) else { return Ok(None) };
        if let Some(first) = source.ahead.front() {
            return Ok(Some(first.head.commit_ms));
        }
        self.ahead_bytes -= source.forget();
        let mut next_seq = match source.next_seq {
            Some(seq) => seq,
            None => self.local.first_after(id, self.position)?,
        };
        let last_seq = self.local.store.last_seq(id);
        self.scanner.read_ahead(piece_bytes);
        while source.ahead.is_empty() && next_seq <= last_seq {
            let scanned = self.scanner.scan(id, next_seq, last_seq, &mut |event| {
                let is_full = !source.ahead.is_empty()
                    && source.bytes.len() + event.body.len() + event.key.map_or(0, <[u8]>::len) > piece_bytes;
                if is_full {
                    return Visit::Stop;
                }
                source.push(event);
                Visit::Next
            });
            // Batches in memory are not kept alive for it.
            self.scanner.rest();
            let scanned = scanned?;
            if scanned.next_seq <= next_seq {
                break;
            }
            next_seq = scanned.next_seq;
        }
        source.next_seq = Some(next_seq);
        self.ahead_bytes += source.bytes.len();
        let next_ms = source.ahead.front().map(|first| first.head.commit_ms);
        if self.ahead_bytes > AHEAD_BYTES_MAX {
            self.forget_some(id);
        }
        Ok(next_ms)
    }

    /// Forgets what the topics have read ahead that come last, until half is left.
    fn forget_some(&mut self, but: TopicId) {
        let next_ms = |source: &Source| source.ahead.front().map(|first| first.head.commit_ms);
        let full = self.sources.iter().filter(|(id, _)| **id != but);
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

    /// The topic whose event is next, with its commit time; it stays in the heap.
    fn next_topic(&mut self) -> Result<Option<(i64, TopicId)>, ReadError> {
        while let Some(&Reverse((ms, number))) = self.due.peek() {
            let id = TopicId::from_number(number);
            let next_ms = match self.refill(id) {
                // Deleted: what it had is gone.
                Err(ReadError::UnknownTopic(_)) => {
                    if let Some(mut source) = self.sources.remove(&id) {
                        self.ahead_bytes -= source.forget();
                    }
                    None
                }
                refilled => refilled?,
            };
            match next_ms {
                Some(next_ms) if next_ms <= ms => return Ok(Some((ms, id))),
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
        Ok(None)
    }

    fn complete_ms(&mut self, wanted: i64) -> i64 {
        let closing = if self.incomplete >= (wanted, PATIENCE) { wanted } else { i64::MIN };
        let complete_ms = self.local.store.commit_times(closing).complete_ms;
        self.incomplete = match self.incomplete {
            _ if complete_ms >= wanted => (i64::MIN, 0),
            (ms, count) if ms == wanted => (ms, count.saturating_add(1)),
            _ => (wanted, 1),
        };
        complete_ms
    }
}

impl MergedReader for Merged {
    fn read(&mut self, limit: PullLimit) -> Result<MergedChunk, ReadError> {
        self.local.check_open()?;
        if let Some(reason) = self.local.watch.unavailable() {
            return Err(reason.clone().into());
        }
        // Asked before the topics are looked at: what is complete now is there for all of them.
        let mut complete_ms = self.local.store.commit_times(i64::MIN).complete_ms;
        self.take_news();
        let mut chunk = MergedChunk {
            events: Default::default(),
            places: Vec::new(),
            position: self.position,
            more: More::Now,
        };
        let mut looked_at = 0;
        loop {
            let next = match self.next_topic() {
                // The events before it are returned; the next read is an error.
                Err(error) if error.is_unreadable() && self.position > chunk.position => break,
                next => next?,
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
                // Others may have got something before it meanwhile.
                self.take_news();
                continue;
            }
            let Some(source) = self.sources.get_mut(&id) else { break };
            let Some(first) = source.ahead.front() else { break };
            let size = first.body.len() + first.key.as_ref().map_or(0, Range::len);
            let is_full = chunk.places.len() >= limit.events.max(1) as usize
                || (!chunk.places.is_empty() && chunk.events.byte_count() + size > limit.bytes)
                || looked_at >= LOOKED_AT_BYTES;
            if is_full {
                break;
            }
            looked_at += size;
            let place = BusPosition { commit_ms: ms, topic: id.number(), seq: first.head.seq };
            let event = StoredEvent {
                seq: first.head.seq,
                id: first.head.id,
                ts: first.head.ts,
                commit_ms: first.head.commit_ms,
                key: first.key.clone().map(|key| &source.bytes[key]),
                body: &source.bytes[first.body.clone()],
                tombstone: false,
                client_id: first.head.is_client_id,
            };
            let key = || event.key.and_then(|key| std::str::from_utf8(key).ok());
            let filter = self.query.filter.as_ref();
            if filter.is_none_or(|filter| filter.matches(key(), &Body::new(event.body))) {
                chunk.events.push(&source.topic, Position { source: SourceId(0), seq: place.seq }, &event);
                chunk.places.push(place);
            }
            source.ahead.pop_front();
            self.position = place;
        }
        chunk.position = self.position;
        Ok(chunk)
    }

    fn position(&self) -> BusPosition {
        self.position
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.local.is_closed() || self.local.watch.unavailable().is_some() {
            return Poll::Ready(());
        }
        self.feed.poll(context)
    }
}

impl Local {
    /// Closes the time of everything that was appended so far, and answers it. That may put commit times ahead of the clock, a
    /// little; if many ask in one millisecond, the time may stay open.
    fn close_now(&self) -> i64 {
        let open_ms = self.store.commit_times(i64::MIN).closed_ms.saturating_add(1);
        let closing = if open_ms <= self.clock.wall_ms() + LEAD_MS { open_ms } else { i64::MIN };
        self.store.commit_times(closing).closed_ms
    }

    fn topics_matching(&self, pattern: &Pattern) -> Vec<(TopicId, Topic)> {
        let topics = self.topics.read();
        let named = topics.by_name.iter().filter(|(name, _)| pattern.matches(name.as_str()));
        named.map(|(name, id)| (*id, name.clone())).collect()
    }

    /// The first seq of a topic after a place.
    pub(super) fn first_after(&self, topic: TopicId, place: BusPosition) -> Result<u64, ReadError> {
        let number = topic.number();
        if number == place.topic {
            let is_known = place.seq <= self.store.appended_seq(topic);
            return if is_known { Ok(place.seq + 1) } else { Err(ReadError::UnknownPosition) };
        }
        let is_behind = |head: &EventHead| (head.commit_ms, number) > (place.commit_ms, place.topic);
        if place == BusPosition::START {
            return Ok(1);
        }
        // Commit times rise with the seqs. Most topics have nothing new, or little: from the end back, then in halves.
        let last_seq = self.store.last_seq(topic);
        let (mut low, mut high, mut step) = (1, last_seq + 1, 1);
        let mut probe = last_seq;
        while probe >= low && low < high {
            match self.store.head_at_or_after(topic, probe)? {
                Some(head) if !is_behind(&head) => {
                    low = head.seq + 1;
                    break;
                }
                _ => high = probe,
            }
            probe = last_seq.saturating_sub(step);
            step = step.saturating_mul(2);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match self.store.head_at_or_after(topic, middle)? {
                Some(head) if !is_behind(&head) => low = head.seq + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The place that a start means in the topics of a pattern.
    pub(super) fn place_of(&self, pattern: &Pattern, start: Start) -> Result<BusPosition, ReadError> {
        self.check_open()?;
        match start {
            Start::Earliest => Ok(BusPosition::START),
            // After events that were published and are not durable yet, too.
            Start::Latest => Ok(BusPosition::after_time(self.close_now())),
            Start::Ts(ts) => {
                let mut first_ms = None;
                for (id, _) in self.topics_matching(pattern) {
                    let Some(seq) = self.store.first_at_or_after(id, ts)? else { continue };
                    let Some(head) = self.store.head_at_or_after(id, seq)? else { continue };
                    first_ms = Some(first_ms.map_or(head.commit_ms, |ms: i64| ms.min(head.commit_ms)));
                }
                let Some(first_ms) = first_ms else { return self.place_of(pattern, Start::Latest) };
                Ok(BusPosition::after_time(first_ms.saturating_sub(1)))
            }
            Start::AfterId(id) => {
                for (topic, _) in self.topics_matching(pattern) {
                    if let Some(seq) = self.store.find(topic, event_id_of(id))?
                        && let Some(head) = self.store.head_at_or_after(topic, seq)?
                        // Of an event that was cleaned away only its id is known, not when it was committed.
                        && head.seq == seq
                    {
                        return Ok(BusPosition { commit_ms: head.commit_ms, topic: topic.number(), seq });
                    }
                }
                Err(ReadError::UnknownId(id))
            }
        }
    }

    /// The place in front of a seq of a topic, also of one that is not there yet.
    pub(super) fn place_before(&self, topic: &Topic, next_seq: u64) -> BusPosition {
        let closed_ms = self.store.commit_times(i64::MIN).closed_ms;
        match self.topic_id(topic) {
            Some(id) => {
                BusPosition { commit_ms: closed_ms, topic: id.number(), seq: next_seq.saturating_sub(1) }
            }
            None => BusPosition::after_time(closed_ms),
        }
    }
}
