//! The newest events by key, brought up to date by reading what came since the last question. A publish pays nothing for it.
//!
//! Compacted topics have their map as long as they are compacted, others as long as somebody asks.

use crate::backend::{EventBatch, EventPosition, Keys, LatestPage, LatestQuery, PullLimit, uuid_of};
use crate::clock::Clock;
use crate::commit_watch::CommitWatch;
use crate::delivery::Millis;
use crate::engine::{
    Engine, EventHead, EventScanner, LiveCount, Liveness, StoredEvent, TopicId, Visit, off_async_threads,
};
use crate::error::ReadError;
use crate::state::{LatestMap, Seen};
use parking_lot::Mutex;
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::Semaphore;

/// A map that is this many events behind is brought up to date on a thread that may take its time.
const BEHIND_MAX: u64 = 20_000;
/// Wanted seqs that are this close to each other are read in one go.
const GAP_MAX: u64 = 64;
/// The most states of another time that are made at once.
const AT_ONCE_MAX: usize = 2;
/// A topic that has too many keys is not read again for this long.
const REFUSED_MS: Millis = 60_000;
/// What the log stores of an event next to its key and body.
const HEAD_BYTES: usize = 64;

/// The maps of all topics that need one.
pub(super) struct LatestByKey {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    commits: Arc<CommitWatch>,
    limit_bytes: usize,
    by_topic: Mutex<HashMap<TopicId, Arc<SharedMap>>>,
    /// About what they take together, with those that are made for one answer.
    bytes: Arc<AtomicUsize>,
    /// States of another time are made for one answer, from the whole topic: only a few at once.
    turns: Semaphore,
}

/// The map of a topic.
pub(super) struct SharedMap {
    pub(super) state: Mutex<TopicState>,
    /// Held while the map is brought up to date: its scanner has one user at a time.
    reading: tokio::sync::Mutex<()>,
}

/// The newest events of a topic by key, up to some seq.
pub(super) struct TopicState {
    pub(super) map: LatestMap,
    next_seq: u64,
    newest: Option<EventHead>,
    scanner: Box<dyn EventScanner>,
    /// What all maps take together, and how much of it is this one's.
    total_bytes: Arc<AtomicUsize>,
    counted_bytes: usize,
    used_at: Millis,
    /// It has too many keys; until then nobody looks again.
    refused_until: Option<Millis>,
}

impl Drop for TopicState {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.counted_bytes, Ordering::Relaxed);
    }
}

impl TopicState {
    fn new(latest: &LatestByKey) -> Self {
        Self {
            map: LatestMap::default(),
            next_seq: 1,
            newest: None,
            scanner: latest.engine.scanner(),
            total_bytes: Arc::clone(&latest.bytes),
            counted_bytes: 0,
            used_at: 0,
            refused_until: None,
        }
    }

    /// Forgets everything below a seq.
    fn cut(&mut self, first_seq: u64) {
        self.map.cut(first_seq);
        self.count(usize::MAX);
    }

    /// See [`LatestMap::old_tombstones`].
    pub(super) fn old_tombstones(
        &mut self,
        after: u64,
        by_ms: i64,
        to_seq: u64,
        limit: usize,
    ) -> Vec<(u64, Vec<u8>)> {
        let old = self.map.old_tombstones(after, by_ms, to_seq, limit);
        self.count(usize::MAX);
        old
    }

    /// These deletions have done their work.
    pub(super) fn drop_tombstones(&mut self, seqs: impl Iterator<Item = u64>) {
        seqs.for_each(|seq| self.map.drop_tombstone(seq));
        self.count(usize::MAX);
    }

    /// Takes note of what the map takes. False when all together take too much.
    fn count(&mut self, limit_bytes: usize) -> bool {
        let bytes = self.map.memory_bytes();
        let added = bytes.wrapping_sub(std::mem::replace(&mut self.counted_bytes, bytes));
        self.total_bytes.fetch_add(added, Ordering::Relaxed).wrapping_add(added) <= limit_bytes
    }

    fn position(&self) -> Option<EventPosition> {
        self.newest.map(|head| EventPosition { id: uuid_of(head.id), seq: head.seq })
    }
}

fn seen<'a>(event: &StoredEvent<'a>) -> Seen<'a> {
    Seen {
        seq: event.seq,
        key: event.key,
        is_tombstone: event.tombstone,
        commit_ms: event.commit_ms,
        bytes: (HEAD_BYTES + event.key.map_or(0, <[u8]>::len) + event.body.len()) as u32,
    }
}

impl LatestByKey {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        commits: Arc<CommitWatch>,
        limit_bytes: usize,
    ) -> Self {
        Self {
            engine,
            clock,
            commits,
            limit_bytes,
            by_topic: Mutex::default(),
            bytes: Arc::default(),
            turns: Semaphore::new(AT_ONCE_MAX),
        }
    }

    fn new_map(&self) -> Arc<SharedMap> {
        Arc::new(SharedMap {
            state: Mutex::new(TopicState::new(self)),
            reading: tokio::sync::Mutex::default(),
        })
    }

    fn get(&self, topic: TopicId) -> Arc<SharedMap> {
        Arc::clone(self.by_topic.lock().entry(topic).or_insert_with(|| self.new_map()))
    }

    /// Forgets the map of a topic.
    pub(super) fn forget(&self, topic: TopicId) {
        // Dropped outside of the lock, or by its last user.
        let forgotten = self.by_topic.lock().remove(&topic);
        drop(forgotten);
    }

    /// Retention removed what is below a seq: it is gone from the map too.
    pub(super) fn cut(&self, topic: TopicId, first_seq: u64) {
        let map = self.by_topic.lock().get(&topic).cloned();
        if let Some(map) = map {
            map.state.lock().cut(first_seq);
        }
    }

    /// Forgets maps that nobody used since this time, except those of topics that need them.
    pub(super) fn forget_unused(&self, used_before: Millis, is_needed: impl Fn(TopicId) -> bool) {
        let all: Vec<_> = self.by_topic.lock().iter().map(|(&id, map)| (id, Arc::clone(map))).collect();
        for (topic, map) in all {
            let is_unused = map.state.try_lock().is_some_and(|state| state.used_at < used_before);
            if is_unused && !is_needed(topic) {
                self.forget(topic);
            }
        }
    }

    /// About what all maps take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The map of a topic, up to date.
    pub(super) async fn up_to_date(
        self: &Arc<Self>,
        id: TopicId,
        topic: &Topic,
    ) -> Result<Arc<SharedMap>, ReadError> {
        let map = self.get(id);
        self.bring(&map, id, topic, i64::MAX).await?;
        Ok(map)
    }

    /// Brings a map up to date, or to a time. What takes long is done on a thread that may be blocked.
    async fn bring(
        self: &Arc<Self>,
        map: &Arc<SharedMap>,
        id: TopicId,
        topic: &Topic,
        to_ts: i64,
    ) -> Result<(), ReadError> {
        let _reading = map.reading.lock().await;
        let next_seq = map.state.lock().next_seq;
        let is_long = self.engine.last_seq(id).saturating_sub(next_seq) > BEHIND_MAX;
        if is_long && self.engine.capabilities().reads_locally {
            let (latest, map, topic) = (Arc::clone(self), Arc::clone(map), topic.clone());
            return off_async_threads(move |_may_block| {
                let mut context = Context::from_waker(Waker::noop());
                match latest.poll_catch_up(&mut map.state.lock(), id, &topic, to_ts, &mut context) {
                    Poll::Ready(done) => done,
                    Poll::Pending => Err(ReadError::Failed("a local read is pending".to_owned())),
                }
            })
            .await;
        }
        poll_fn(|context| self.poll_catch_up(&mut map.state.lock(), id, topic, to_ts, context)).await
    }

    /// Reads what came since the last time.
    fn poll_catch_up(
        &self,
        state: &mut TopicState,
        id: TopicId,
        topic: &Topic,
        to_ts: i64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ReadError>> {
        state.used_at = self.clock.steady_ms();
        let limit_bytes = self.limit_bytes;
        let too_many = || ReadError::TooManyKeys { topic: topic.to_string(), limit_bytes };
        if state.refused_until.is_some_and(|until| state.used_at < until) {
            return Poll::Ready(Err(too_many()));
        }
        let first_seq = self.engine.retained_from(id);
        if state.next_seq <= first_seq {
            state.next_seq = first_seq;
            state.cut(first_seq);
        }
        if !std::task::ready!(self.poll_read_on(state, id, to_ts, context))? {
            // Half of the keys are of no use to anyone.
            state.map = LatestMap::default();
            state.next_seq = 1;
            state.newest = None;
            state.count(limit_bytes);
            state.scanner.rest();
            state.refused_until = Some(state.used_at.saturating_add(REFUSED_MS));
            return Poll::Ready(Err(too_many()));
        }
        state.refused_until = None;
        Poll::Ready(Ok(()))
    }

    /// Takes in what the topic has after the map, up to a time. False when the keys take too much memory.
    fn poll_read_on(
        &self,
        state: &mut TopicState,
        id: TopicId,
        to_ts: i64,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, ReadError>> {
        let last_seq = self.engine.last_seq(id);
        while state.next_seq <= last_seq {
            // A large topic takes long, and closing waits for maintenance.
            self.commits.check_open()?;
            let TopicState { map, newest, scanner, next_seq, .. } = state;
            let scanned = scanner.poll_scan(id, *next_seq, last_seq, context, &mut |event| {
                if event.ts <= to_ts {
                    map.apply(&seen(event));
                    *newest = Some(EventHead::from(event));
                }
                Visit::Next
            });
            let scanned = std::task::ready!(scanned)?;
            if scanned.next_seq <= *next_seq {
                break;
            }
            *next_seq = scanned.next_seq;
            if !state.count(self.limit_bytes) {
                return Poll::Ready(Ok(false));
            }
        }
        Poll::Ready(Ok(true))
    }

    /// The newest events of keys.
    pub(super) async fn latest(
        self: &Arc<Self>,
        id: TopicId,
        topic: &Topic,
        query: LatestQuery,
    ) -> Result<LatestPage, ReadError> {
        let picked = match query.at_ts {
            None => Picked::new(&self.up_to_date(id, topic).await?.state.lock(), &query),
            Some(ts) => {
                // The semaphore is never closed.
                let _turn = self.turns.acquire().await.ok();
                let map = self.new_map();
                self.bring(&map, id, topic, ts).await?;
                Picked::new(&map.state.lock(), &query)
            }
        };
        self.read_picked(picked, id, topic, query.limit).await
    }

    /// Reads the events of an answer, without the lock.
    async fn read_picked(
        &self,
        picked: Picked,
        id: TopicId,
        topic: &Topic,
        limit: PullLimit,
    ) -> Result<LatestPage, ReadError> {
        let Picked { seqs, has_more, position, key_count } = picked;
        let mut events = EventBatch::default();
        let mut scanner = self.engine.scanner();
        let mut last = None;
        let mut is_full = false;
        let mut at = 0;
        while at < seqs.len() && !is_full {
            let gap = seqs[at..].windows(2).position(|pair| pair[1] - pair[0] > GAP_MAX);
            let end = at + gap.unwrap_or(seqs.len() - at - 1);
            let (mut wanted, mut from) = (&seqs[at..=end], seqs[at]);
            while from <= seqs[end] && !is_full {
                let scanned = poll_fn(|context| {
                    scanner.poll_scan(id, from, seqs[end], context, &mut |event| {
                        while wanted.first().is_some_and(|&seq| seq < event.seq) {
                            wanted = &wanted[1..];
                        }
                        if wanted.first() == Some(&event.seq) {
                            let size = events.byte_count() + event.body.len();
                            is_full = !events.is_empty() && size > limit.bytes;
                            if is_full {
                                return Visit::Stop;
                            }
                            events.push(topic, event);
                            last = Some(event.seq);
                        }
                        Visit::Next
                    })
                });
                let scanned = scanned.await?;
                if scanned.next_seq <= from {
                    break;
                }
                from = scanned.next_seq;
            }
            at = end + 1;
        }
        let next_after = match (is_full, has_more) {
            (true, _) => last,
            (false, true) => seqs.last().copied(),
            (false, false) => None,
        };
        Ok(LatestPage { events, position, key_count, next_after })
    }
}

/// The events of an answer that are to be read.
struct Picked {
    seqs: Vec<u64>,
    has_more: bool,
    position: Option<EventPosition>,
    key_count: u64,
}

impl Picked {
    fn new(state: &TopicState, query: &LatestQuery) -> Self {
        let limit = (query.limit.events as usize).max(1);
        let newest = state.next_seq - 1;
        let to = query.to_seq.unwrap_or(newest).min(newest);
        let mut seqs: Vec<u64> = match &query.keys {
            Keys::All => state.map.seqs(query.after_seq, to, query.with_deleted).take(limit + 1).collect(),
            Keys::These(keys) => {
                let seqs = keys.iter().filter_map(|key| state.map.get(key.as_bytes()));
                let mut seqs: Vec<u64> = seqs.filter(|&seq| seq > query.after_seq && seq <= to).collect();
                seqs.sort_unstable();
                seqs.dedup();
                seqs.truncate(limit + 1);
                seqs
            }
        };
        let has_more = seqs.len() > limit;
        seqs.truncate(limit);
        Self { seqs, has_more, position: state.position(), key_count: state.map.key_count() as u64 }
    }
}

/// Which events live, for the engine's cleaning.
pub(super) struct LiveEvents<'a> {
    pub(super) engine: &'a dyn Engine,
    /// The maps of compacted topics; they were just brought up to date.
    pub(super) compacted: HashMap<TopicId, Arc<SharedMap>>,
}

impl Liveness for LiveEvents<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.engine.retained_from(topic)
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.compacted.contains_key(&topic)
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let state = self.compacted.get(&topic)?.state.lock();
        if last_seq >= state.next_seq {
            return None;
        }
        let (events, bytes) = state.map.live_in(first_seq, last_seq);
        Some(LiveCount { events, bytes })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        let Some(state) = self.compacted.get(&topic) else { return true };
        let state = state.state.lock();
        seq >= state.next_seq || state.map.is_live(seq)
    }
}
