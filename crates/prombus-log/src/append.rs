//! The append lock: what is decided about a record before it is written. Under it an event gets its seq, its id and its
//! commit time, is found to be new or a duplicate, has its place in a segment, and is encoded into the batch in the making,
//! all while the batch before it is being synced.
//!
//! Room is decided here and not at the write, so an append that cannot be written is refused before it has used a seq.

use crate::commit::Pending;
use crate::error::{AppendError, ReadError};
use crate::id::{EventId, IdMaker, is_own};
use crate::layout::SEGMENT_DATA_START;
use crate::log::Shared;
use crate::own_ids::OwnIds;
use crate::recent_ids::RecentIds;
use crate::record::{
    self, FLAG_CLIENT_ID, FLAG_DELETED, FLAG_KEY, FLAG_TOMBSTONE, HEADER_BYTES, Header, Kind, RUN_BYTES,
    TOPIC_MAX,
};
use crate::segment::Segment;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const TOPIC_NAME_BYTES_MAX: usize = 1024;

/// The internal number of a topic in this log. Never used again after the topic is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub(crate) u32);

impl TopicId {
    /// The id with this number, for callers that kept it in a record of their own. Only the log knows whether there is one.
    pub const fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// The number itself, for records and messages.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// An event to append.
#[derive(Clone, Copy, Debug)]
pub struct NewEvent<'a> {
    /// Its topic, from [`Log::ensure_topic`](crate::Log::ensure_topic).
    pub topic: TopicId,
    /// The publisher's id; without one the log makes one.
    pub id: Option<EventId>,
    /// The publisher's time.
    pub ts: i64,
    /// The key for latest-by-key and compaction.
    pub key: Option<&'a [u8]>,
    /// What is kept; the log never looks into it.
    pub body: &'a [u8],
    /// Whether it deletes its key in a compacted topic.
    pub tombstone: bool,
}

/// A state record to append: opaque to the log, given back to [`State::apply`](crate::State::apply) in order.
#[derive(Clone, Copy, Debug)]
pub struct NewState<'a> {
    /// What the caller wants to tell records apart by.
    pub tag: u32,
    /// The record.
    pub body: &'a [u8],
}

/// What is appended together: all of it becomes durable, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Append<'a> {
    /// Events, in order.
    pub events: &'a [NewEvent<'a>],
    /// State records, in order.
    pub states: &'a [NewState<'a>],
    /// May use the reserve that is held back for a full disk. For what lets consumers go on, not for publishers.
    pub use_reserve: bool,
}

/// What became of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its id.
    pub id: EventId,
    /// Its seq; of a duplicate, that of the event that was there.
    pub seq: u64,
    /// The topic had this id already and nothing was added.
    pub duplicate: bool,
}

/// The outcomes of an append, one per event. Reuse one for many appends: it keeps its memory.
#[derive(Debug, Default)]
pub struct Outcomes {
    all: Vec<Outcome>,
    /// Per event, made before the lock is taken.
    prepared: Vec<Prepared>,
}

#[derive(Clone, Copy, Debug)]
struct Prepared {
    body_crc: u32,
    /// The seq of the durable event that has this id already; zero for none.
    duplicate_of: u64,
    /// Of the publisher's id.
    id_hash: u64,
}

impl std::ops::Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.all
    }
}

/// Says which commit makes an append durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub(crate) batch: u64,
}

impl Ticket {
    /// The number of the batch; the append is durable when [`Log::durable_batch`](crate::Log::durable_batch) reached it.
    pub fn batch(self) -> u64 {
        self.batch
    }
}

/// What the append lock guards.
pub(crate) struct AppendState {
    /// The batch in the making.
    pub(crate) pending: Pending,
    /// By internal id; zero is not used.
    pub(crate) topics: Vec<TopicAppend>,
    ids: IdMaker,
    pub(crate) last_commit_ms: i64,
    /// The publishers' ids of segments whose index file is not there yet.
    pub(crate) recent_ids: RecentIds,
    /// Where the batch in the making goes.
    pub(crate) place: Place,
    /// Segments that are ready to be written, in the order they are taken.
    pub(crate) spares: VecDeque<Spare>,
    /// The disk had no room for another segment.
    pub(crate) is_full: bool,
    pub(crate) is_closed: bool,
}

pub(crate) struct TopicAppend {
    pub(crate) next_seq: u64,
    pub(crate) is_deleted: bool,
    /// The topic's run in the batch `run_batch`.
    run: usize,
    run_batch: u64,
}

impl TopicAppend {
    pub(crate) fn new(last_seq: u64, is_deleted: bool) -> Self {
        Self { next_seq: last_seq + 1, is_deleted, run: 0, run_batch: 0 }
    }
}

pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) salt: u32,
    pub(crate) remaining: u64,
    /// The segment is the reserve: publishers must not use what is left of it.
    pub(crate) is_reserve: bool,
}

pub(crate) struct Spare {
    pub(crate) segment: Arc<Segment>,
    pub(crate) is_reserve: bool,
}

enum Room {
    Ready,
    Wait,
    Full,
}

impl AppendState {
    pub(crate) fn new(
        pending: Pending,
        topics: Vec<TopicAppend>,
        ids: IdMaker,
        last_commit_ms: i64,
        recent_ids: RecentIds,
        place: Place,
        spares: VecDeque<Spare>,
    ) -> Self {
        let (is_full, is_closed) = (false, false);
        Self { pending, topics, ids, last_commit_ms, recent_ids, place, spares, is_full, is_closed }
    }

    /// Finds room for `bytes` (with run table entries, without the COMMIT) in the batch in the making.
    fn make_room(&mut self, bytes: u64, use_reserve: bool, batch_limit: u64) -> Room {
        let may_stay = use_reserve || !self.place.is_reserve;
        let with_commit = self.pending.bytes() as u64 + bytes + HEADER_BYTES as u64;
        if !self.pending.is_empty() {
            let fits = may_stay && with_commit <= self.place.remaining && with_commit <= batch_limit;
            return if fits {
                Room::Ready
            } else if !may_stay && self.is_full && !self.spares.iter().any(|spare| !spare.is_reserve) {
                Room::Full
            } else {
                Room::Wait
            };
        }
        if may_stay && with_commit <= self.place.remaining {
            return Room::Ready;
        }
        let usable = |spare: &Spare| !spare.is_reserve && spare.segment.room() >= with_commit;
        let reserve = |spare: &Spare| use_reserve && spare.segment.room() >= with_commit;
        let at = self.spares.iter().position(usable).or_else(|| {
            // The reserve only when nothing better is to come.
            self.is_full.then(|| self.spares.iter().position(reserve)).flatten()
        });
        match at.and_then(|at| self.spares.remove(at)) {
            Some(spare) => {
                self.roll(&spare);
                Room::Ready
            }
            None if self.is_full => Room::Full,
            None => Room::Wait,
        }
    }

    /// The next batch starts a new segment.
    fn roll(&mut self, spare: &Spare) {
        match self.pending.roll_to(Arc::clone(&spare.segment)) {
            None => self.recent_ids.roll(self.place.segment),
            // The append before this one rolled and then had nothing to add.
            Some(segment) => self.spares.push_front(Spare { segment, is_reserve: self.place.is_reserve }),
        }
        self.place = Place {
            segment: spare.segment.id.number,
            salt: spare.segment.id.salt,
            remaining: spare.segment.room(),
            is_reserve: spare.is_reserve,
        };
    }

    /// The batch in the making is the last one that goes into this segment, if batches go there now: the next one might share a
    /// bad sector with what was lost.
    pub(crate) fn leave(&mut self, segment: u64) {
        if self.place.segment == segment {
            let is_empty = self.pending.is_empty();
            let pending = if is_empty { 0 } else { self.pending.bytes() + HEADER_BYTES };
            self.place.remaining = pending as u64;
        }
    }

    /// The newest ticket: everything appended so far is durable when it is.
    pub(crate) fn newest_ticket(&self) -> Ticket {
        let batch = self.pending.batch();
        Ticket { batch: if self.pending.is_empty() { batch - 1 } else { batch } }
    }

    fn event(&mut self, event: &NewEvent<'_>, prepared: Prepared, now_ms: i64, shared: &Shared) -> Outcome {
        let topic = event.topic.0;
        if let Some(id) = event.id {
            let duplicate_of = match prepared.duplicate_of {
                0 => {
                    let seq = self.topics[topic as usize].next_seq;
                    self.recent_ids.insert(topic, id, prepared.id_hash, seq)
                }
                seq => Some(seq),
            };
            if let Some(seq) = duplicate_of {
                return Outcome { id, seq, duplicate: true };
            }
        }
        let id = event.id.unwrap_or_else(|| self.ids.next(now_ms));
        let state = &mut self.topics[topic as usize];
        let seq = state.next_seq;
        state.next_seq += 1;
        if state.run_batch != self.pending.batch() {
            state.run_batch = self.pending.batch();
            state.run = self.pending.begin_run(topic, seq);
        }
        let key = event.key.unwrap_or(&[]);
        let flags = if event.id.is_some() { FLAG_CLIENT_ID } else { 0 }
            | if event.key.is_some() { FLAG_KEY } else { 0 }
            | if event.tombstone { FLAG_TOMBSTONE } else { 0 };
        let header = Header {
            kind: Kind::Event,
            flags,
            key_length: key.len() as u16,
            body_length: event.body.len() as u32,
            body_crc: prepared.body_crc,
            topic,
            seq,
            commit_ms: now_ms,
            ts: event.ts,
            id,
        };
        self.pending.add_event(state.run, &header, key, event.body, self.place.salt, shared.hash);
        if event.id.is_none() {
            self.pending.last_own_id = id;
        }
        Outcome { id, seq, duplicate: false }
    }

    /// Commit time: the clock's, but never less than before.
    fn commit_ms(&mut self, now_ms: i64) -> i64 {
        self.last_commit_ms = self.last_commit_ms.max(now_ms);
        self.pending.commit_ms = self.last_commit_ms;
        self.last_commit_ms
    }
}

impl Shared {
    pub(crate) fn append(
        &self,
        append: &Append<'_>,
        outcomes: &mut Outcomes,
        wait: bool,
    ) -> Result<Ticket, AppendError> {
        let bytes = self.append_bytes(append)?;
        outcomes.all.clear();
        outcomes.prepared.clear();
        outcomes.prepared.extend(append.events.iter().map(|event| Prepared {
            body_crc: record::body_crc(event.key.unwrap_or(&[]), event.body),
            duplicate_of: 0,
            id_hash: event.id.map_or(0, |id| self.hash.of_id(event.topic.0, id)),
        }));
        let now_ms = self.options.clock.now_ms();
        let mut looked_up = self.look_up_ids(append, outcomes, wait)?;

        let mut state = self.append.lock();
        loop {
            self.poison.check()?;
            if state.is_closed {
                return Err(crate::error::Unavailable::Closed.into());
            }
            if let Some(event) = append.events.iter().find(|event| !is_alive(&state.topics, event.topic)) {
                return Err(AppendError::UnknownTopic(event.topic.0));
            }
            if looked_up.is_some_and(|count| count != state.recent_ids.forgotten()) {
                // A segment's ids went from memory to its index file since they were looked up there.
                drop(state);
                looked_up = self.look_up_ids(append, outcomes, wait)?;
                state = self.append.lock();
                continue;
            }
            match state.make_room(bytes, append.use_reserve, self.options.batch_bytes as u64) {
                Room::Ready => break,
                Room::Full => return Err(AppendError::StorageFull),
                Room::Wait if !wait || !self.options.threads => return Err(AppendError::QueueFull),
                Room::Wait => self.room.wait(&mut state),
            }
        }
        let now_ms = state.commit_ms(now_ms);
        if looked_up.is_some() {
            state.recent_ids.warm(outcomes.prepared.iter().map(|prepared| prepared.id_hash));
        }
        for (event, &prepared) in append.events.iter().zip(&outcomes.prepared) {
            outcomes.all.push(state.event(event, prepared, now_ms, self));
        }
        let salt = state.place.salt;
        for record in append.states {
            state.pending.add_state(record, now_ms, salt);
        }
        let ticket = state.newest_ticket();
        let has_work = !state.pending.is_empty();
        drop(state);
        if has_work {
            self.wake_committer();
        }
        Ok(ticket)
    }

    /// What an append takes at most, or why it never fits.
    fn append_bytes(&self, append: &Append<'_>) -> Result<u64, AppendError> {
        let mut bytes = 0;
        for event in append.events {
            let key_length = event.key.map_or(0, <[u8]>::len);
            if key_length > usize::from(u16::MAX) {
                return Err(AppendError::KeyTooLong { bytes: key_length });
            }
            bytes += HEADER_BYTES + key_length + event.body.len() + RUN_BYTES;
        }
        for record in append.states {
            bytes += HEADER_BYTES + record.body.len();
        }
        let bytes = bytes as u64 + RUN_BYTES as u64;
        self.check_size(bytes)?;
        Ok(bytes)
    }

    fn check_size(&self, bytes: u64) -> Result<(), AppendError> {
        let limit_bytes = self.options.segment_bytes - SEGMENT_DATA_START - HEADER_BYTES as u64;
        if bytes > limit_bytes {
            return Err(AppendError::TooLarge { bytes, limit_bytes });
        }
        Ok(())
    }

    /// Looks the publishers' ids up in what is durable. Answers how many segments' ids had been forgotten from memory before,
    /// or `None` when there was nothing to look up.
    fn look_up_ids(
        &self,
        append: &Append<'_>,
        outcomes: &mut Outcomes,
        wait: bool,
    ) -> Result<Option<u64>, AppendError> {
        if append.events.iter().all(|event| event.id.is_none()) {
            return Ok(None);
        }
        let forgotten = self.forgotten_ids.load(Ordering::Acquire);
        let files = Arc::clone(&self.id_files.read());
        let mut own_ids = OwnIds::default();
        for (event, prepared) in append.events.iter().zip(&mut outcomes.prepared) {
            let Some(id) = event.id else { continue };
            let topic = event.topic.0;
            if is_own(self.hash, id) && id > self.view.read().last_own_id {
                self.wait_for_own_id(id, wait)?;
            }
            let mut lookup = || -> Result<Option<u64>, ReadError> {
                if let Some(seq) = self.find_client_id(&files, topic, id, prepared.id_hash)? {
                    return Ok(Some(seq));
                }
                if is_own(self.hash, id) { self.find_own_id(topic, id, &mut own_ids) } else { Ok(None) }
            };
            prepared.duplicate_of =
                lookup().map_err(|error| AppendError::Lookup(error.to_string()))?.unwrap_or(0);
        }
        Ok(Some(forgotten))
    }

    /// An id that this log may have made is above all durable ones: waits until it is known whether an event has it.
    fn wait_for_own_id(&self, id: EventId, wait: bool) -> Result<(), AppendError> {
        let state = self.append.lock();
        if id > state.ids.newest() {
            // It only looks like one of the log's own, which has not made ids this high.
            return Ok(());
        }
        let ticket = state.newest_ticket();
        drop(state);
        if wait && self.options.threads {
            return Ok(self.wait(ticket)?);
        }
        self.poison.check()?;
        // First the wish, then the look: the committer does it the other way round.
        self.wants_durable.store(true, Ordering::SeqCst);
        if self.durable.get() < ticket.batch { Err(AppendError::QueueFull) } else { Ok(()) }
    }

    /// The id of a topic, which is made if it is not there.
    pub(crate) fn ensure_topic(&self, name: &str, wait: bool) -> Result<TopicId, AppendError> {
        if let Some(id) = self.topic_id(name) {
            return Ok(id);
        }
        if name.is_empty() || name.len() > TOPIC_NAME_BYTES_MAX {
            return Err(AppendError::BadTopicName(name.len()));
        }
        let mut state = self.room_for_topic_record(name.len(), false, wait)?;
        if let Some(id) = self.topic_id(name) {
            return Ok(id);
        }
        let id = u32::try_from(state.topics.len()).ok().filter(|&id| id <= TOPIC_MAX);
        let id = TopicId(id.ok_or(AppendError::TooManyTopics)?);
        state.topics.push(TopicAppend::new(0, false));
        self.topics.write().add(id, name.into());
        self.put_topic_record(state, id, name, 0);
        Ok(id)
    }

    /// Deletes a topic: its events are gone for readers once this is durable, and cleaning takes them. The records become durable
    /// with it.
    pub(crate) fn delete_topic(
        &self,
        id: TopicId,
        states: &[NewState<'_>],
        wait: bool,
    ) -> Result<Ticket, AppendError> {
        let name = self.topic_name(id.0).ok_or(AppendError::UnknownTopic(id.0))?;
        let state_bytes: usize = states.iter().map(|record| HEADER_BYTES + record.body.len()).sum();
        let state_bytes = if states.is_empty() { 0 } else { state_bytes + RUN_BYTES };
        // Also on a full disk: cleaning can then free what the topic took.
        let mut state = self.room_for_topic_record(name.len() + state_bytes, true, wait)?;
        if !is_alive(&state.topics, id) {
            return Err(AppendError::UnknownTopic(id.0));
        }
        state.topics[id.0 as usize].is_deleted = true;
        self.topics.write().remove(id);
        let now_ms = state.commit_ms(self.options.clock.now_ms());
        let salt = state.place.salt;
        for record in states {
            state.pending.add_state(record, now_ms, salt);
        }
        Ok(self.put_topic_record(state, id, &name, FLAG_DELETED))
    }

    fn room_for_topic_record(
        &self,
        name_length: usize,
        use_reserve: bool,
        wait: bool,
    ) -> Result<parking_lot::MutexGuard<'_, AppendState>, AppendError> {
        let bytes = (HEADER_BYTES + name_length + RUN_BYTES) as u64;
        self.check_size(bytes)?;
        let mut state = self.append.lock();
        loop {
            self.poison.check()?;
            if state.is_closed {
                return Err(crate::error::Unavailable::Closed.into());
            }
            match state.make_room(bytes, use_reserve, self.options.batch_bytes as u64) {
                Room::Ready => return Ok(state),
                Room::Full => return Err(AppendError::StorageFull),
                Room::Wait if !wait || !self.options.threads => return Err(AppendError::QueueFull),
                Room::Wait => self.room.wait(&mut state),
            }
        }
    }

    fn put_topic_record(
        &self,
        mut state: parking_lot::MutexGuard<'_, AppendState>,
        id: TopicId,
        name: &str,
        flags: u8,
    ) -> Ticket {
        let now_ms = state.commit_ms(self.options.clock.now_ms());
        let salt = state.place.salt;
        state.pending.add_topic(id.0, name, flags, now_ms, salt);
        let ticket = state.newest_ticket();
        drop(state);
        self.wake_committer();
        ticket
    }
}

fn is_alive(topics: &[TopicAppend], topic: TopicId) -> bool {
    topic.0 != 0 && topics.get(topic.0 as usize).is_some_and(|state| !state.is_deleted)
}
