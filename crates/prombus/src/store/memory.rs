//! The store in memory: for tests, and for programs that can do without what happened before they started. A publish is
//! "durable" at once.
//!
//! Nothing is taken away but by retention, compaction and deletion: at its limit it refuses events, as a full disk does.

use super::groups::GroupState;
use super::{
    AppendBatch, CleanOptions, CleanReport, CommitTimes, EventHead, Liveness, Scanned, Scanner, Store,
    StoreObserver, StoredEvent, StoredTopic, TopicUsage, Visit,
};
use crate::clock::Clock;
use crate::error::{BackupError, ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use parking_lot::{Mutex, RwLock};
use prombus_log::{EventId, NewEvent, Outcome, TopicId};
use prombus_protocol::Topic;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bodies are kept in blocks of about this size.
const BLOCK_BYTES: usize = 256 * 1024;
/// What an event takes next to its key and body.
const OVERHEAD_BYTES: u64 = size_of::<Place>() as u64;
/// Publishers' ids are known for so long after their events were cleaned away.
const DEDUPE_MS: i64 = 7 * 24 * 3_600_000;
/// So many of them at most, for each topic.
const CLEANED_IDS_MAX: usize = 1_000_000;

/// Events in memory.
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    limit_bytes: u64,
    bytes: AtomicU64,
    is_closed: AtomicBool,
    observer: OnceLock<Arc<dyn StoreObserver>>,
    topics: RwLock<Topics>,
    /// Appends are one after the other, as in a log.
    append: Mutex<IdMaker>,
    /// Appends of two rounds that have not told the observer yet.
    telling: [AtomicUsize; 2],
}

#[derive(Default)]
struct Topics {
    by_name: HashMap<Topic, TopicId>,
    /// By number; deleted ones leave a hole.
    all: Vec<Option<Arc<MemoryTopic>>>,
}

struct MemoryTopic {
    name: Topic,
    events: RwLock<Events>,
}

#[derive(Default)]
struct Events {
    /// By seq; where something was cleaned away there are gaps.
    places: Vec<Place>,
    blocks: Vec<Vec<u8>>,
    last_seq: u64,
    /// Nothing below it is served.
    first_seq: u64,
    /// Publishers' ids.
    ids: HashMap<EventId, u64>,
    /// Those of events that were cleaned away, with their commit times.
    cleaned_ids: VecDeque<(i64, EventId)>,
}

/// An event; its key and body stand in a block.
struct Place {
    seq: u64,
    id: EventId,
    ts: i64,
    commit_ms: i64,
    block: u32,
    start: u32,
    key_length: Option<u16>,
    body_length: u32,
    is_tombstone: bool,
    is_client_id: bool,
}

impl Place {
    fn bytes(&self) -> u64 {
        OVERHEAD_BYTES + u64::from(self.key_length.unwrap_or(0)) + u64::from(self.body_length)
    }
}

impl Events {
    fn put_bytes(&mut self, parts: &[&[u8]]) -> (u32, u32) {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.blocks.last().is_none_or(|block| block.capacity() - block.len() < length) {
            // A topic with a few events should not cost a block.
            let grown = self.blocks.last().map_or(1024, |block| block.capacity() * 4);
            self.blocks.push(Vec::with_capacity(grown.min(BLOCK_BYTES).max(length)));
        }
        let at = self.blocks.len() - 1;
        let block = &mut self.blocks[at];
        let start = block.len();
        parts.iter().for_each(|part| block.extend_from_slice(part));
        (at as u32, start as u32)
    }

    fn push(&mut self, event: &NewEvent<'_>, id: EventId, commit_ms: i64) -> u64 {
        let (block, start) = self.put_bytes(&[event.key.unwrap_or(&[]), event.body]);
        let seq = self.last_seq + 1;
        self.last_seq = seq;
        self.places.push(Place {
            seq,
            id,
            ts: event.ts,
            commit_ms,
            block,
            start,
            key_length: event.key.map(|key| key.len() as u16),
            body_length: event.body.len() as u32,
            is_tombstone: event.tombstone,
            is_client_id: event.id.is_some(),
        });
        if event.id.is_some() {
            self.ids.insert(id, seq);
        }
        seq
    }

    /// What its events take.
    fn bytes(&self) -> u64 {
        self.places.iter().map(Place::bytes).sum()
    }

    /// Takes away what is dead, if that is worth it. Answers how many events and bytes went.
    fn clean(&mut self, is_live: impl Fn(u64) -> bool, now_ms: i64) -> (u64, u64) {
        while let Some(&(commit_ms, id)) = self.cleaned_ids.front()
            && (commit_ms.saturating_add(DEDUPE_MS) < now_ms || self.cleaned_ids.len() > CLEANED_IDS_MAX)
        {
            self.cleaned_ids.pop_front();
            self.ids.remove(&id);
        }
        let total = self.bytes();
        let is_kept = |place: &Place| place.seq >= self.first_seq && is_live(place.seq);
        let kept: u64 = self.places.iter().filter(|place| is_kept(place)).map(Place::bytes).sum();
        if total - kept <= kept / 2 {
            return (0, 0);
        }
        let before = std::mem::take(&mut self.places);
        let blocks = std::mem::take(&mut self.blocks);
        let first_seq = self.first_seq;
        let mut removed = 0;
        for place in before {
            if place.seq < first_seq || !is_live(place.seq) {
                removed += 1;
                if place.is_client_id {
                    self.cleaned_ids.push_back((place.commit_ms, place.id));
                }
                continue;
            }
            let start = place.start as usize;
            let length = usize::from(place.key_length.unwrap_or(0)) + place.body_length as usize;
            let bytes = &blocks[place.block as usize][start..start + length];
            let (block, start) = self.put_bytes(&[bytes]);
            self.places.push(Place { block, start, ..place });
        }
        (removed, total - kept)
    }

    fn usage(&self, topic: TopicId) -> TopicUsage {
        let kept = &self.places[self.at(1)..];
        TopicUsage { topic, events: kept.len() as u64, bytes: kept.iter().map(Place::bytes).sum() }
    }

    /// Where the first event at or past a seq stands.
    fn at(&self, seq: u64) -> usize {
        let seq = seq.max(self.first_seq);
        // Without gaps, a guess is right at once.
        let guess = self.places.first().map_or(0, |first| seq.saturating_sub(first.seq)) as usize;
        if self.places.get(guess).is_some_and(|place| place.seq == seq) {
            return guess;
        }
        self.places.partition_point(|place| place.seq < seq)
    }

    fn event(&self, place: &Place) -> StoredEvent<'_> {
        let key_length = usize::from(place.key_length.unwrap_or(0));
        let bytes = &self.blocks[place.block as usize][place.start as usize..];
        StoredEvent {
            seq: place.seq,
            id: place.id,
            ts: place.ts,
            commit_ms: place.commit_ms,
            key: place.key_length.map(|_| &bytes[..key_length]),
            body: &bytes[key_length..key_length + place.body_length as usize],
            tombstone: place.is_tombstone,
            client_id: place.is_client_id,
        }
    }

    fn find(&self, id: EventId) -> Option<u64> {
        if let Some(&seq) = self.ids.get(&id) {
            return Some(seq);
        }
        // Ids that the store made rise; those that publishers chose stand between them.
        let (mut low, mut high) = (0, self.places.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.places[middle..high].iter().position(|place| !place.is_client_id) {
                None => high = middle,
                Some(ahead) => {
                    let place = &self.places[middle + ahead];
                    match place.id.cmp(&id) {
                        std::cmp::Ordering::Equal => return Some(place.seq),
                        std::cmp::Ordering::Less => low = middle + ahead + 1,
                        std::cmp::Ordering::Greater => high = middle,
                    }
                }
            }
        }
        None
    }
}

/// The part of an id that counts.
const COUNTER_MASK: u128 = (1 << 62) - 1;

/// UUIDv7 that rise strictly.
#[derive(Debug, Default)]
struct IdMaker {
    last: u128,
    /// The newest commit time; they never fall, whatever the clock does.
    commit_ms: i64,
    /// Which count of `telling` appends use now.
    round: usize,
    /// Closed when this round began.
    round_ms: i64,
    complete_ms: i64,
    salt: u128,
}

impl IdMaker {
    fn next(&mut self, now_ms: i64) -> EventId {
        let millis = u128::try_from(now_ms).unwrap_or(0) & 0xffff_ffff_ffff;
        let fresh = millis << 80 | 7 << 76 | 0b10 << 62 | self.salt;
        let next = if fresh > self.last {
            fresh
        } else {
            // The counter is the low 62 bits: it never runs out within a millisecond.
            self.last + 1
        };
        self.last = next;
        EventId::from_u128(next)
    }
}

impl MemoryStore {
    /// An empty store that takes up to `limit_bytes` of events.
    pub fn new(limit_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        // Ids of two stores that start in the same millisecond differ: a random start below half of the counter.
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8);
        let salt = u128::from(random >> 3);
        let topics = RwLock::default();
        Self {
            shared: Arc::new(Shared {
                clock,
                limit_bytes,
                bytes: AtomicU64::new(0),
                is_closed: AtomicBool::new(false),
                observer: OnceLock::new(),
                topics,
                append: Mutex::new(IdMaker {
                    last: 0,
                    commit_ms: i64::MIN,
                    round: 0,
                    round_ms: i64::MIN,
                    complete_ms: i64::MIN,
                    salt,
                }),
                telling: Default::default(),
            }),
        }
    }

    /// Bytes that events take.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn topic(&self, id: TopicId) -> Result<Arc<MemoryTopic>, ReadError> {
        let at = (id.number() as usize).wrapping_sub(1);
        let topics = self.topics.read();
        let topic = topics.all.get(at).cloned().flatten();
        topic.ok_or_else(|| ReadError::UnknownTopic(format!("number {}", id.number())))
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Ordering::SeqCst) { Err(Unavailable::Closed.into()) } else { Ok(()) }
    }
}

impl Store for MemoryStore {
    fn observe(&self, observer: Arc<dyn StoreObserver>) {
        let _ = self.shared.observer.set(observer);
    }

    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Outcome>) -> Result<u64, StoreError> {
        let shared = &*self.shared;
        shared.check_open()?;
        let size = |event: &NewEvent<'_>| {
            OVERHEAD_BYTES + (event.key.map_or(0, <[u8]>::len) + event.body.len()) as u64
        };
        let added: u64 = batch.events.iter().map(size).sum();
        let mut ids = shared.append.lock();
        if added > 0 && shared.bytes.load(Ordering::Relaxed) + added > shared.limit_bytes {
            return Err(StoreError::Full);
        }
        let commit_ms = shared.clock.wall_ms().max(ids.commit_ms);
        ids.commit_ms = commit_ms;
        // Looked up before anything is added: a batch is added whole or not at all.
        let mut topics: Vec<(TopicId, Arc<MemoryTopic>, u64)> = Vec::new();
        for event in batch.events {
            if !topics.iter().any(|(id, ..)| *id == event.topic) {
                let unknown = |_| StoreError::UnknownTopic(event.topic.number());
                let topic = shared.topic(event.topic).map_err(unknown)?;
                topics.push((event.topic, topic, 0));
            }
        }
        let mut at = 0;
        while at < batch.events.len() {
            let topic_id = batch.events[at].topic;
            let (_, topic, newest) =
                topics.iter_mut().find(|(id, ..)| *id == topic_id).expect("looked up above");
            let mut events = topic.events.write();
            // All neighbours of one topic under one lock.
            while let Some(event) = batch.events.get(at).filter(|event| event.topic == topic_id) {
                at += 1;
                let known = event.id.and_then(|id| events.find(id).map(|seq| (id, seq)));
                if let Some((id, seq)) = known {
                    outcomes.push(Outcome { id, seq, duplicate: true });
                    continue;
                }
                let id = event.id.unwrap_or_else(|| ids.next(commit_ms));
                let seq = events.push(event, id, commit_ms);
                shared.bytes.fetch_add(size(event), Ordering::Relaxed);
                *newest = seq;
                outcomes.push(Outcome { id, seq, duplicate: false });
            }
        }
        let telling = &shared.telling[ids.round];
        telling.fetch_add(1, Ordering::Relaxed);
        drop(ids);
        if let Some(observer) = shared.observer.get() {
            let newest = topics.iter().filter(|(_, _, newest)| *newest > 0);
            observer.committed(0, &mut newest.map(|(id, _, newest)| (*id, *newest)));
        }
        telling.fetch_sub(1, Ordering::Release);
        Ok(0)
    }

    fn durable_batch(&self) -> u64 {
        0
    }

    fn commit_times(&self, closing: i64) -> CommitTimes {
        // An append holds this until its events are there; then it tells the observer.
        let mut ids = self.shared.append.lock();
        ids.commit_ms = ids.commit_ms.max(self.shared.clock.wall_ms()).max(closing.saturating_add(1));
        let closed_ms = ids.commit_ms.saturating_sub(1);
        let is_told = |round: usize| self.shared.telling[round].load(Ordering::Acquire) == 0;
        // Appends of the round before are over: all that came before this round is told, and a new one begins.
        if is_told(1 - ids.round) {
            ids.complete_ms = ids.round_ms;
            ids.round_ms = closed_ms;
            ids.round = 1 - ids.round;
            if is_told(1 - ids.round) {
                ids.complete_ms = closed_ms;
            }
        }
        CommitTimes { closed_ms, complete_ms: ids.complete_ms, durable_batch: 0 }
    }

    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        self.shared.check_open()?;
        if let Some(&id) = self.shared.topics.read().by_name.get(name) {
            return Ok(id);
        }
        let mut topics = self.shared.topics.write();
        if let Some(&id) = topics.by_name.get(name) {
            return Ok(id);
        }
        let number =
            u32::try_from(topics.all.len() + 1).map_err(|error| StoreError::Other(error.to_string()))?;
        let id = TopicId::from_number(number);
        topics.by_name.insert(name.clone(), id);
        topics.all.push(Some(Arc::new(MemoryTopic { name: name.clone(), events: RwLock::default() })));
        Ok(id)
    }

    fn topics(&self) -> Vec<StoredTopic> {
        let topics = self.shared.topics.read();
        let all = topics.all.iter().zip(1..).filter_map(|(topic, number)| {
            let topic = topic.as_ref()?;
            let last_seq = topic.events.read().last_seq;
            Some(StoredTopic { id: TopicId::from_number(number), name: topic.name.clone(), last_seq })
        });
        all.collect()
    }

    fn last_seq(&self, topic: TopicId) -> u64 {
        self.shared.topic(topic).map_or(0, |topic| topic.events.read().last_seq)
    }

    fn appended_seq(&self, topic: TopicId) -> u64 {
        self.last_seq(topic)
    }

    fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        let topic = self.shared.topic(topic)?;
        let events = topic.events.read();
        Ok(events.places.get(events.at(1)).map(|place| place.seq))
    }

    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        let topic = self.shared.topic(topic)?;
        let events = topic.events.read();
        Ok(events.places.get(events.at(seq)).map(|place| EventHead::from(&events.event(place))))
    }

    fn scanner(&self) -> Box<dyn Scanner> {
        Box::new(MemoryScanner { shared: Arc::clone(&self.shared), topic: None })
    }

    fn find(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        Ok(self.shared.topic(topic)?.events.read().find(id))
    }

    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        let topic = self.shared.topic(topic)?;
        let events = topic.events.read();
        Ok(events.places[events.at(1)..].iter().find(|place| place.ts >= ts).map(|place| place.seq))
    }

    fn is_own_id(&self, id: EventId) -> bool {
        // Its ids have the same salt in their upper half as long as no millisecond has millions of them.
        let ids = self.shared.append.lock();
        let number = id.as_u128();
        number <= ids.last && (number & COUNTER_MASK) >> 40 == ids.salt >> 40
    }

    fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        let topic = self.shared.topic(topic)?;
        let events = topic.events.read();
        let older = &events.places[..events.places.partition_point(|place| place.seq < seq)];
        Ok(older.iter().any(|place| events.event(place).key == Some(key)))
    }

    /// One pass over the topic for all keys: it has no index of them.
    fn have_keys_before(&self, topic: TopicId, keys: &[(u64, Vec<u8>)]) -> Vec<Result<bool, ReadError>> {
        let topic = match self.shared.topic(topic) {
            Ok(topic) => topic,
            Err(error) => return keys.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut first_seqs: HashMap<&[u8], u64> =
            keys.iter().map(|(_, key)| (key.as_slice(), u64::MAX)).collect();
        let last = keys.iter().map(|&(seq, _)| seq).max().unwrap_or(0);
        let events = topic.events.read();
        for place in events.places.iter().take_while(|place| place.seq < last) {
            if let Some(first) = events.event(place).key.and_then(|key| first_seqs.get_mut(key)) {
                *first = (*first).min(place.seq);
            }
        }
        keys.iter().map(|(seq, key)| Ok(first_seqs[key.as_slice()] < *seq)).collect()
    }

    fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        for &(id, first_seq) in firsts {
            if let Ok(topic) = self.shared.topic(id) {
                let mut events = topic.events.write();
                events.first_seq = first_seq.max(events.first_seq);
            }
        }
        Ok(())
    }

    fn cut_at(&self, topic: TopicId) -> u64 {
        self.shared.topic(topic).map_or(0, |topic| topic.events.read().first_seq)
    }

    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        let topic = self.shared.topic(topic)?;
        let events = topic.events.read();
        let mut left = bytes;
        for (at, place) in events.places.iter().enumerate().rev() {
            match left.checked_sub(place.bytes()) {
                Some(rest) => left = rest,
                // The newest one stays whatever its size.
                None => return Ok(place.seq + u64::from(at + 1 < events.places.len())),
            }
        }
        Ok(1)
    }

    fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        let topics = self.shared.topics.read();
        let usage = topics.all.iter().zip(1..).filter_map(|(topic, number)| {
            Some(topic.as_ref()?.events.read().usage(TopicId::from_number(number)))
        });
        Ok(usage.collect())
    }

    fn usage_of(&self, wanted: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        let usage = wanted.iter().map(|&id| {
            let topic = self.shared.topic(id).ok()?;
            let usage = topic.events.read().usage(id);
            Some(usage)
        });
        Ok(usage.collect())
    }

    fn delete_topic(&self, id: TopicId, name: &Topic) -> Result<u64, StoreError> {
        self.shared.check_open()?;
        // Not in the middle of a batch.
        let _appends = self.shared.append.lock();
        let mut topics = self.shared.topics.write();
        let at = (id.number() as usize).wrapping_sub(1);
        let topic = topics.all.get_mut(at).and_then(Option::take);
        let topic = topic.ok_or(StoreError::UnknownTopic(id.number()))?;
        topics.by_name.remove(name);
        drop(topics);
        let mut events = topic.events.write();
        self.shared.bytes.fetch_sub(events.bytes(), Ordering::Relaxed);
        // Whoever is reading it right now finds it empty.
        *events = Events::default();
        Ok(0)
    }

    fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        let topics: Vec<_> = self.shared.topics.read().all.iter().cloned().zip(1..).collect();
        let mut report = CleanReport::default();
        let now_ms = self.shared.clock.wall_ms();
        for (topic, number) in topics {
            let (Some(topic), id) = (topic, TopicId::from_number(number)) else { continue };
            let (first, is_sparse) = (liveness.first_live(id), options.compact && liveness.is_sparse(id));
            let is_live = |seq| seq >= first && (!is_sparse || liveness.is_live(id, seq));
            let (events, bytes) = topic.events.write().clean(is_live, now_ms);
            self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            report.events_removed += events;
            report.bytes_removed += bytes;
        }
        Ok(report)
    }

    fn worth_cleaning_bytes(&self) -> u64 {
        64 * 1024
    }

    fn topic_settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn backup(&self, _folder: &Path, _progress: &mut dyn FnMut(u64, u64)) -> Result<(), BackupError> {
        Err(BackupError::NotDurable)
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn groups(&self) -> Vec<GroupState> {
        Vec::new()
    }

    fn wait_for_room(&self) -> bool {
        false
    }

    fn figures(&self) -> StoreFigures {
        StoreFigures { bytes: self.shared.bytes.load(Ordering::Relaxed), ..StoreFigures::default() }
    }

    fn close(&self) -> Result<(), Unavailable> {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

struct MemoryScanner {
    shared: Arc<Shared>,
    topic: Option<(TopicId, Arc<MemoryTopic>)>,
}

impl Scanner for MemoryScanner {
    fn scan(
        &mut self,
        id: TopicId,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Result<Scanned, ReadError> {
        if self.topic.as_ref().is_none_or(|(known, _)| *known != id) {
            self.topic = Some((id, self.shared.topic(id)?));
        }
        let (_, topic) = self.topic.as_ref().expect("just set");
        let events = topic.events.read();
        let mut scanned = Scanned { next_seq: from.max(1), ..Scanned::default() };
        for place in &events.places[events.at(from)..] {
            if place.seq > to || visit(&events.event(place)) == Visit::Stop {
                scanned.cleaned += place.seq.min(to + 1) - scanned.next_seq;
                scanned.next_seq = place.seq.min(to + 1);
                return Ok(scanned);
            }
            scanned.cleaned += place.seq - scanned.next_seq;
            scanned.next_seq = place.seq + 1;
        }
        // The newest events may be gone too.
        let end = events.last_seq.min(to) + 1;
        scanned.cleaned += end.saturating_sub(scanned.next_seq);
        scanned.next_seq = scanned.next_seq.max(end);
        Ok(scanned)
    }

    fn rest(&mut self) {}
}
