//! The newest events by key, kept up to date by reading what came since somebody last asked. A publish costs nothing for it.
//!
//! Compacted topics have their map for as long as they are compacted, others for as long as somebody asks.

use super::Local;
use crate::backend::{DeliveryBatch, EventPosition, Keys, LatestPage, LatestQuery, PullLimit, uuid_of};
use crate::delivery::{Millis, Position, SourceId};
use crate::error::ReadError;
use crate::state::{LatestMap, Seen};
use crate::store::{EventHead, LiveCount, Liveness, Scanner, Store, StoredEvent, TopicId, Visit};
use parking_lot::{Mutex, MutexGuard};
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// A map that is so many events behind is brought up to date on a thread that may take its time.
const BEHIND_MAX: u64 = 20_000;
/// Seqs that are wanted and stand so close to each other are read in one go.
const GAP_MAX: u64 = 64;
/// So many states of another time are made at once.
const AT_ONCE_MAX: usize = 2;
/// A topic that has too many keys is not read again for so long.
const REFUSED_MS: Millis = 60_000;
/// What the log keeps of an event next to its key and body.
const HEAD_BYTES: usize = 64;

/// The maps of all topics that need one.
#[derive(Default)]
pub(super) struct States {
    by_topic: Mutex<HashMap<TopicId, Arc<Mutex<TopicState>>>>,
    /// What they take together, about, with those that are made for one answer.
    bytes: Arc<AtomicUsize>,
    /// States of another time are made for one answer, from the whole topic: so many at once.
    turns: Turns,
}

struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE_MAX))
    }
}

/// The newest events of a topic by key, up to some seq.
pub(super) struct TopicState {
    pub(super) map: LatestMap,
    next_seq: u64,
    newest: Option<EventHead>,
    scanner: Box<dyn Scanner>,
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
    fn new(store: &dyn Store, states: &States) -> Self {
        Self {
            map: LatestMap::default(),
            next_seq: 1,
            newest: None,
            scanner: store.scanner(),
            total_bytes: Arc::clone(&states.bytes),
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

impl States {
    fn get(&self, topic: TopicId, store: &dyn Store) -> Arc<Mutex<TopicState>> {
        let mut by_topic = self.by_topic.lock();
        let made = || Arc::new(Mutex::new(TopicState::new(store, self)));
        Arc::clone(by_topic.entry(topic).or_insert_with(made))
    }

    /// Forgets the map of a topic.
    pub(super) fn forget(&self, topic: TopicId) {
        // Whoever uses it right now is the last.
        drop(self.by_topic.lock().remove(&topic));
    }

    /// What is cut off a topic is gone from its map.
    pub(super) fn cut(&self, topic: TopicId, first_seq: u64) {
        let state = self.by_topic.lock().get(&topic).cloned();
        if let Some(state) = state {
            state.lock().cut(first_seq);
        }
    }

    /// Forgets maps that nobody asked since this time, but for those of topics that need them.
    pub(super) fn forget_unused(&self, used_before: Millis, is_needed: impl Fn(TopicId) -> bool) {
        let all: Vec<_> = self.by_topic.lock().iter().map(|(&id, state)| (id, Arc::clone(state))).collect();
        for (topic, state) in all {
            let is_unused = state.try_lock().is_some_and(|state| state.used_at < used_before);
            if is_unused && !is_needed(topic) {
                self.forget(topic);
            }
        }
    }

    /// About what all maps take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Local {
    /// The map of a topic, up to date.
    pub(super) fn state(&self, id: TopicId, topic: &Topic) -> Result<Arc<Mutex<TopicState>>, ReadError> {
        let state = self.states.get(id, &*self.store);
        self.catch_up(&mut state.lock(), id, topic)?;
        Ok(state)
    }

    /// Reads what came since the last time.
    fn catch_up(&self, state: &mut TopicState, id: TopicId, topic: &Topic) -> Result<(), ReadError> {
        state.used_at = self.clock.steady_ms();
        let limit_bytes = self.limits.state_memory_bytes;
        let too_many = || ReadError::TooManyKeys { topic: topic.to_string(), limit_bytes };
        if state.refused_until.is_some_and(|until| state.used_at < until) {
            return Err(too_many());
        }
        let first_seq = self.store.cut_at(id);
        if state.next_seq <= first_seq {
            state.next_seq = first_seq;
            state.cut(first_seq);
        }
        if !self.read_on(state, id, i64::MAX)? {
            // Half of the keys are of no use to anyone.
            state.map = LatestMap::default();
            state.next_seq = 1;
            state.newest = None;
            state.count(limit_bytes);
            state.scanner.rest();
            state.refused_until = Some(state.used_at.saturating_add(REFUSED_MS));
            return Err(too_many());
        }
        state.refused_until = None;
        Ok(())
    }

    /// Takes in what the topic has behind the map, up to a time. False when the keys take too much memory.
    fn read_on(&self, state: &mut TopicState, id: TopicId, to_ts: i64) -> Result<bool, ReadError> {
        let last_seq = self.store.last_seq(id);
        while state.next_seq <= last_seq {
            // A large topic takes long, and closing waits for the keeper.
            self.check_open()?;
            let TopicState { map, newest, scanner, next_seq, .. } = state;
            let scanned = scanner.scan(id, *next_seq, last_seq, &mut |event| {
                if event.ts <= to_ts {
                    map.apply(&seen(event));
                    *newest = Some(EventHead::from(event));
                }
                Visit::Next
            })?;
            if scanned.next_seq <= *next_seq {
                break;
            }
            *next_seq = scanned.next_seq;
            if !state.count(self.limits.state_memory_bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The map of a topic, if that needs no long reading.
    fn quick_state<'a>(
        &self,
        state: &'a Mutex<TopicState>,
        id: TopicId,
        topic: &Topic,
    ) -> Option<Result<MutexGuard<'a, TopicState>, ReadError>> {
        let mut state = state.try_lock()?;
        if self.store.last_seq(id).saturating_sub(state.next_seq) > BEHIND_MAX {
            return None;
        }
        Some(self.catch_up(&mut state, id, topic).map(|()| state))
    }

    pub(super) async fn latest(
        self: &Arc<Self>,
        topic: &Topic,
        query: LatestQuery,
    ) -> Result<LatestPage, ReadError> {
        self.check_open()?;
        let id = self.topic_id(topic).ok_or_else(|| ReadError::UnknownTopic(topic.to_string()))?;
        if query.at_ts.is_none() {
            let shared = self.states.get(id, &*self.store);
            if let Some(state) = self.quick_state(&shared, id, topic) {
                let picked = Picked::new(&*state?, &query);
                return self.read_picked(picked, id, topic, query.limit);
            }
        }
        // The semaphore is never closed.
        let turn = match query.at_ts {
            Some(_) => self.states.turns.0.acquire().await.ok(),
            None => None,
        };
        let (local, topic) = (Arc::clone(self), topic.clone());
        let read = move || {
            let picked = match query.at_ts {
                Some(ts) => Picked::new(&local.state_at(id, &topic, ts)?, &query),
                None => Picked::new(&local.state(id, &topic)?.lock(), &query),
            };
            local.read_picked(picked, id, &topic, query.limit)
        };
        let answer = super::aside(read).await;
        drop(turn);
        answer
    }

    /// The newest events as of a time, from what is kept.
    fn state_at(&self, id: TopicId, topic: &Topic, ts: i64) -> Result<TopicState, ReadError> {
        let mut state = TopicState::new(&*self.store, &self.states);
        let limit_bytes = self.limits.state_memory_bytes;
        if !self.read_on(&mut state, id, ts)? {
            return Err(ReadError::TooManyKeys { topic: topic.to_string(), limit_bytes });
        }
        Ok(state)
    }

    /// Reads the events of an answer, without the lock.
    fn read_picked(
        &self,
        picked: Picked,
        id: TopicId,
        topic: &Topic,
        limit: PullLimit,
    ) -> Result<LatestPage, ReadError> {
        let Picked { seqs, has_more, position, key_count } = picked;
        let mut events = DeliveryBatch::default();
        let mut scanner = self.store.scanner();
        let mut last = None;
        let mut is_full = false;
        let mut at = 0;
        while at < seqs.len() && !is_full {
            let gap = seqs[at..].windows(2).position(|pair| pair[1] - pair[0] > GAP_MAX);
            let end = at + gap.unwrap_or(seqs.len() - at - 1);
            let (mut wanted, mut from) = (&seqs[at..=end], seqs[at]);
            while from <= seqs[end] && !is_full {
                let scanned = scanner.scan(id, from, seqs[end], &mut |event| {
                    while wanted.first().is_some_and(|&seq| seq < event.seq) {
                        wanted = &wanted[1..];
                    }
                    if wanted.first() == Some(&event.seq) {
                        let size = events.byte_count() + event.body.len();
                        is_full = !events.is_empty() && size > limit.bytes;
                        if is_full {
                            return Visit::Stop;
                        }
                        events.push(topic, Position { source: SourceId(0), seq: event.seq }, event);
                        last = Some(event.seq);
                    }
                    Visit::Next
                })?;
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

    /// Which events of compacted topics live. The topics' maps were just brought up to date.
    pub(super) fn liveness(&self, compacted: HashMap<TopicId, Arc<Mutex<TopicState>>>) -> LiveEvents<'_> {
        LiveEvents { store: &*self.store, compacted }
    }
}

/// What is to be read for an answer.
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

/// What cleaning asks.
pub(super) struct LiveEvents<'a> {
    store: &'a dyn Store,
    compacted: HashMap<TopicId, Arc<Mutex<TopicState>>>,
}

impl Liveness for LiveEvents<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.store.cut_at(topic)
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.compacted.contains_key(&topic)
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let state = self.compacted.get(&topic)?.lock();
        if last_seq >= state.next_seq {
            return None;
        }
        let (events, bytes) = state.map.live_in(first_seq, last_seq);
        Some(LiveCount { events, bytes })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        let Some(state) = self.compacted.get(&topic) else { return true };
        let state = state.lock();
        seq >= state.next_seq || state.map.is_live(seq)
    }
}
