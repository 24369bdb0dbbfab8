//! Maps from keys to their newest events, one map per topic. A map is brought up to date when it is queried, by reading the
//! events since the last query, so a publish has no additional cost.
//!
//! The map of a compacted topic is kept as long as the topic is compacted; other maps are kept until they have not been queried
//! for some time.

mod live_events;
mod page;

pub(super) use live_events::LiveEvents;

use super::run_reads::run_reads;
use crate::backend::{EventPosition, uuid_of};
use crate::clock::Clock;
use crate::commit_watch::CommitWatch;
use crate::delivery::Millis;
use crate::engine::{Engine, EventHead, EventScanner, StoredEvent, TopicId, Visit};
use crate::error::ReadError;
use crate::state::{LatestMap, Seen};
use parking_lot::Mutex;
use prombus_protocol::{Body, Topic};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::{OwnedMutexGuard, Semaphore};

/// If a map lacks at most this many events, and they are in memory, they are read on the calling thread; otherwise on a thread
/// that may be blocked.
const QUICK_CATCH_UP_MAX: u64 = 20_000;
/// The maximum number of historical states (queries with a time in the past) that are built at the same time.
const HISTORICAL_STATES_MAX: usize = 2;
/// If the keys of a topic take too much memory, queries of the topic are refused for this long, without reading it again.
const REFUSED_MS: Millis = 60_000;
/// The size of an event in the log, apart from its key and body.
const HEAD_BYTES: usize = 64;

/// The maps of all topics that need one.
pub(super) struct LatestByKey {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    commits: Arc<CommitWatch>,
    /// The limit of `bytes`.
    limit_bytes: usize,
    by_topic: Mutex<HashMap<TopicId, Arc<SharedMap>>>,
    /// The approximate memory of all maps, including those that are built for a single query.
    bytes: Arc<AtomicUsize>,
    /// Limits the number of historical states that are built at the same time. Each is built for one query, from the whole topic.
    turns: Arc<Semaphore>,
}

/// The map of a topic.
pub(super) struct SharedMap {
    pub(super) state: Mutex<TopicState>,
    /// Held while the map is brought up to date, because only one task at a time may use its scanner.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// The newest events of a topic by key, up to a seq.
pub(super) struct TopicState {
    pub(super) map: LatestMap,
    /// The first seq that the map does not cover.
    next_seq: u64,
    /// The newest event that the map covers.
    newest: Option<EventHead>,
    scanner: Box<dyn EventScanner>,
    /// The memory of all maps together.
    total_bytes: Arc<AtomicUsize>,
    /// The part of `total_bytes` that belongs to this map.
    counted_bytes: usize,
    /// When the map was last used.
    used_at: Millis,
    /// If the keys of the topic take too much memory: the time until which queries are refused.
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

    /// Removes all events below a seq from the map.
    fn cut(&mut self, first_seq: u64) {
        self.map.cut(first_seq);
        self.count(usize::MAX);
    }

    /// See [`LatestMap::old_tombstones`].
    pub(super) fn old_tombstones(
        &mut self,
        after: u64,
        by_ms: i64,
        old_seq: u64,
        limit: usize,
    ) -> Vec<(u64, Vec<u8>)> {
        let old = self.map.old_tombstones(after, by_ms, old_seq, limit);
        self.count(usize::MAX);
        old
    }

    /// Removes tombstones that are no longer needed.
    pub(super) fn drop_tombstones(&mut self, seqs: impl Iterator<Item = u64>) {
        seqs.for_each(|seq| self.map.drop_tombstone(seq));
        self.count(usize::MAX);
    }

    /// Updates the count of the memory that the map takes. Returns false if all maps together exceed the limit.
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
        // An event that is addressed to one group neither changes a key nor replaces an older event.
        key: event.key.filter(|_| !Body::new(event.body).is_addressed()),
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
            turns: Arc::new(Semaphore::new(HISTORICAL_STATES_MAX)),
        }
    }

    fn new_map(&self) -> Arc<SharedMap> {
        Arc::new(SharedMap { state: Mutex::new(TopicState::new(self)), reading: Arc::default() })
    }

    fn get(&self, topic: TopicId) -> Arc<SharedMap> {
        Arc::clone(self.by_topic.lock().entry(topic).or_insert_with(|| self.new_map()))
    }

    /// Removes the map of a topic.
    pub(super) fn forget(&self, topic: TopicId) {
        // Dropped after the lock is released, because freeing a large map takes long. If the map is in use, its last user frees
        // it.
        let forgotten = self.by_topic.lock().remove(&topic);
        drop(forgotten);
    }

    /// Removes all events below a seq from the map of a topic, because retention removed them.
    pub(super) fn cut(&self, topic: TopicId, first_seq: u64) {
        let map = self.by_topic.lock().get(&topic).cloned();
        if let Some(map) = map {
            map.state.lock().cut(first_seq);
        }
    }

    /// Removes maps that were not used since this time, except those of topics that need them.
    pub(super) fn forget_unused(&self, used_before: Millis, is_needed: impl Fn(TopicId) -> bool) {
        let all: Vec<_> = self.by_topic.lock().iter().map(|(&id, map)| (id, Arc::clone(map))).collect();
        for (topic, map) in all {
            let is_unused = map.state.try_lock().is_some_and(|state| state.used_at < used_before);
            if is_unused && !is_needed(topic) {
                self.forget(topic);
            }
        }
    }

    /// The approximate memory of all maps.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the map of a topic, up to date.
    pub(super) async fn up_to_date(
        self: &Arc<Self>,
        id: TopicId,
        topic: &Topic,
    ) -> Result<Arc<SharedMap>, ReadError> {
        let map = self.get(id);
        let fold = Fold::begin(self, &map, id, topic, i64::MAX).await;
        if fold.is_quick() {
            fold.run().await?;
        } else {
            run_reads(&*self.engine, async move { fold.run().await }).await?;
        }
        Ok(map)
    }

    /// Brings the map up to date, with the events whose `ts` is at most `to_ts`. Fails if the keys take too much memory.
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
        if !std::task::ready!(self.poll_read_new_events(state, id, to_ts, context))? {
            // A map with only some of the keys is useless, so it is discarded.
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

    /// Adds the topic's events after the map's position, up to a time. Returns false when the keys take too much memory.
    fn poll_read_new_events(
        &self,
        state: &mut TopicState,
        id: TopicId,
        to_ts: i64,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, ReadError>> {
        let last_seq = self.engine.last_seq(id);
        while state.next_seq <= last_seq {
            // Stops reading if the bus was closed: closing waits for maintenance, and reading a large topic takes long.
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
}

/// Brings a map up to date, or to the state at a time. While this value exists, no other task uses the map's scanner. It owns
/// everything that it needs, so that it can run on another thread, and remains exclusive there even if its caller stops waiting.
struct Fold {
    latest: Arc<LatestByKey>,
    map: Arc<SharedMap>,
    id: TopicId,
    topic: Topic,
    /// Events with a later `ts` are left out; `i64::MAX` for the newest state.
    to_ts: i64,
    _turn: OwnedMutexGuard<()>,
}

impl Fold {
    /// Waits for exclusive use of the map.
    async fn begin(
        latest: &Arc<LatestByKey>,
        map: &Arc<SharedMap>,
        id: TopicId,
        topic: &Topic,
        to_ts: i64,
    ) -> Self {
        let turn = Arc::clone(&map.reading).lock_owned().await;
        Self {
            latest: Arc::clone(latest),
            map: Arc::clone(map),
            id,
            topic: topic.clone(),
            to_ts,
            _turn: turn,
        }
    }

    /// Whether [`run`](Self::run) may run on any thread: there is nothing to read, or only a limited number of events that are in
    /// memory.
    fn is_quick(&self) -> bool {
        let last_seq = self.latest.engine.last_seq(self.id);
        let state = self.map.state.lock();
        state.next_seq > last_seq
            || (last_seq - state.next_seq <= QUICK_CATCH_UP_MAX
                && state.scanner.is_in_memory(self.id, state.next_seq))
    }

    async fn run(&self) -> Result<(), ReadError> {
        let Self { latest, map, id, topic, to_ts, .. } = self;
        poll_fn(|context| latest.poll_catch_up(&mut map.state.lock(), *id, topic, *to_ts, context)).await
    }
}
