//! The store in memory: for tests, and for programs that can do without what happened before they started. A publish is
//! "durable" at once.
//!
//! Nothing is taken away behind anyone's back: at its limit it refuses events, as a full disk does.

use super::groups::GroupState;
use super::{AppendBatch, Scanned, Scanner, Store, StoreObserver, StoredEvent, StoredTopic, Visit};
use crate::clock::Clock;
use crate::error::{ReadError, StoreError, Unavailable};
use crate::metrics::StoreFigures;
use parking_lot::{Mutex, RwLock};
use prombus_log::{EventId, NewEvent, Outcome, TopicId};
use prombus_protocol::Topic;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bodies are kept in blocks of about this size.
const BLOCK_BYTES: usize = 256 * 1024;
/// What an event takes next to its key and body.
const OVERHEAD_BYTES: u64 = size_of::<Place>() as u64;

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
}

#[derive(Default)]
struct Topics {
    by_name: HashMap<Topic, TopicId>,
    all: Vec<Arc<MemoryTopic>>,
}

struct MemoryTopic {
    name: Topic,
    events: RwLock<Events>,
}

#[derive(Default)]
struct Events {
    places: Vec<Place>,
    blocks: Vec<Vec<u8>>,
    /// Publishers' ids.
    ids: HashMap<EventId, u64>,
}

/// An event; its key and body stand in a block.
struct Place {
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

impl Events {
    fn push(&mut self, event: &NewEvent<'_>, id: EventId, commit_ms: i64) -> u64 {
        let key = event.key.unwrap_or(&[]);
        let length = key.len() + event.body.len();
        if self.blocks.last().is_none_or(|block| block.capacity() - block.len() < length) {
            // A topic with a few events should not cost a block.
            let grown = self.blocks.last().map_or(1024, |block| block.capacity() * 4);
            self.blocks.push(Vec::with_capacity(grown.min(BLOCK_BYTES).max(length)));
        }
        let block = self.blocks.len() - 1;
        let start = self.blocks[block].len();
        self.blocks[block].extend_from_slice(key);
        self.blocks[block].extend_from_slice(event.body);
        self.places.push(Place {
            id,
            ts: event.ts,
            commit_ms,
            block: block as u32,
            start: start as u32,
            key_length: event.key.map(|key| key.len() as u16),
            body_length: event.body.len() as u32,
            is_tombstone: event.tombstone,
            is_client_id: event.id.is_some(),
        });
        let seq = self.places.len() as u64;
        if event.id.is_some() {
            self.ids.insert(id, seq);
        }
        seq
    }

    fn event(&self, seq: u64) -> Option<StoredEvent<'_>> {
        let place = self.places.get(usize::try_from(seq.checked_sub(1)?).ok()?)?;
        let key_length = usize::from(place.key_length.unwrap_or(0));
        let bytes = &self.blocks[place.block as usize][place.start as usize..];
        Some(StoredEvent {
            seq,
            id: place.id,
            ts: place.ts,
            commit_ms: place.commit_ms,
            key: place.key_length.map(|_| &bytes[..key_length]),
            body: &bytes[key_length..key_length + place.body_length as usize],
            tombstone: place.is_tombstone,
            client_id: place.is_client_id,
        })
    }

    fn find(&self, id: EventId) -> Option<u64> {
        if let Some(&seq) = self.ids.get(&id) {
            return Some(seq);
        }
        if self.ids.len() == self.places.len() {
            return None;
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
                        std::cmp::Ordering::Equal => return Some((middle + ahead) as u64 + 1),
                        std::cmp::Ordering::Less => low = middle + ahead + 1,
                        std::cmp::Ordering::Greater => high = middle,
                    }
                }
            }
        }
        None
    }
}

/// UUIDv7 that rise strictly.
#[derive(Debug, Default)]
struct IdMaker {
    last: u128,
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
                append: Mutex::new(IdMaker { last: 0, salt }),
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
        topics.all.get(at).cloned().ok_or_else(|| ReadError::UnknownTopic(format!("number {}", id.number())))
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
        let commit_ms = shared.clock.wall_ms();
        // Looked up before anything is added: a batch is added whole or not at all.
        let mut topics: Vec<(TopicId, Arc<MemoryTopic>, u64)> = Vec::new();
        for event in batch.events {
            if !topics.iter().any(|(id, ..)| *id == event.topic) {
                let topic =
                    shared.topic(event.topic).map_err(|error| StoreError::Other(error.to_string()))?;
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
        drop(ids);
        if let Some(observer) = shared.observer.get() {
            let newest = topics.iter().filter(|(_, _, newest)| *newest > 0);
            observer.committed(0, &mut newest.map(|(id, _, newest)| (*id, *newest)));
        }
        Ok(0)
    }

    fn durable_batch(&self) -> u64 {
        0
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
        topics.all.push(Arc::new(MemoryTopic { name: name.clone(), events: RwLock::default() }));
        Ok(id)
    }

    fn topics(&self) -> Vec<StoredTopic> {
        let topics = self.shared.topics.read();
        let all = topics.all.iter().zip(1..).map(|(topic, number)| StoredTopic {
            id: TopicId::from_number(number),
            name: topic.name.clone(),
            last_seq: topic.events.read().places.len() as u64,
        });
        all.collect()
    }

    fn last_seq(&self, topic: TopicId) -> u64 {
        self.shared.topic(topic).map_or(0, |topic| topic.events.read().places.len() as u64)
    }

    fn appended_seq(&self, topic: TopicId) -> u64 {
        self.last_seq(topic)
    }

    fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        Ok((!self.shared.topic(topic)?.events.read().places.is_empty()).then_some(1))
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
        Ok(events.places.iter().position(|place| place.ts >= ts).map(|at| at as u64 + 1))
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
        let mut next_seq = from.max(1);
        while next_seq <= to {
            let Some(event) = events.event(next_seq) else { break };
            if visit(&event) == Visit::Stop {
                break;
            }
            next_seq += 1;
        }
        Ok(Scanned { next_seq, ..Scanned::default() })
    }

    fn rest(&mut self) {}
}
