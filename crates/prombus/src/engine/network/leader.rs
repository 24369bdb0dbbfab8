//! The state that an engine keeps in memory while it leads a database: topics, queued commits, the generator of ids, commit
//! times, and whether it can commit.
//!
//! **Invariants:** at most one commit is in flight. Commit numbers, ids and commit times are assigned at the append, in the order
//! of appends. The database assigns seqs and detects duplicates when it applies the commit.

use super::change::{Change, CommitAnswer, EncodedRecord, EventDocument, QueuedEvent};
use super::found_state::FoundState;
use super::id_maker::IdMaker;
use super::limits::NetworkLimits;
use super::pending_commit::PendingCommit;
use super::piece::ReadableSeqs;
use super::tail::Tail;
use crate::engine::lookup::Lookup;
use crate::engine::outcomes::LateOutcomes;
use crate::engine::{
    AppendBatch, Appended, CommitTimes, EventId, NewEvent, StateRecord, StoredTopic, TopicId,
};
use crate::error::{ReadError, StoreError, Unavailable};
use prombus_protocol::Topic;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// The memory that a batch, a topic or a record takes in the queue, apart from its content.
const ENTRY_BYTES: usize = 32;

pub(super) struct Leader {
    limits: NetworkLimits,
    pub(super) topics: BTreeMap<TopicId, LeaderTopic>,
    /// The numbers of the topics by name.
    by_name: HashMap<Topic, TopicId>,
    /// The highest topic number that was ever used.
    topic_number: u32,
    /// Retention that is not durable yet: the commit of its record, and the first seqs that it raised.
    cuts: VecDeque<(u64, Vec<(TopicId, u64)>)>,
    /// Callers of [`appended_seq`](Self::appended_seq), in the order of the commits that they wait for.
    seq_waiters: VecDeque<SeqWaiter>,
    ids: IdMaker,
    /// Queued commits, the oldest first. An append is added to the newest one, if it fits.
    queue: VecDeque<PendingCommit>,
    /// The memory that the queued commits take.
    queue_bytes: usize,
    /// The number of changes in the queued commits: batches, and creations and deletions of topics.
    queue_batches: usize,
    /// The newest commit number that was assigned.
    newest_commit: u64,
    /// The newest commit that the database has confirmed.
    pub(super) durable_commit: u64,
    /// The newest commit that was reported to the observer.
    reported_commit: u64,
    /// The newest commit time that was reported to the observer.
    reported_ms: i64,
    /// The commit time of the next append is at least this.
    commit_ms: i64,
    /// The tail cache: the newest durable events.
    pub(super) tail: Tail,
    pub(super) availability: Availability,
    /// Why the database cannot be used. Appends are refused as soon as it is set, even before the observer is told.
    outage: watch::Receiver<Option<String>>,
}

/// Whether the engine can commit, and what the observer was told about it.
#[derive(Default)]
pub(super) struct Availability {
    /// The committer has seen an outage of the database, and has not seen its end.
    pub(super) is_suspended: bool,
    /// The observer was told of the suspension, and has not been told of its end.
    pub(super) is_suspension_reported: bool,
    /// An append was refused with `Busy`, so the observer must be told when there is room.
    pub(super) must_report_room: bool,
    /// The engine is being closed: appends are refused.
    pub(super) is_closing: bool,
    /// Why the engine has permanently stopped committing.
    pub(super) stopped: Option<Unavailable>,
    /// The committer has ended.
    pub(super) is_ended: bool,
}

/// A topic of a database, as the leading engine sees it.
pub(super) struct LeaderTopic {
    pub(super) name: Topic,
    /// Events below this seq are not served. Retention raises it at once, before its record is durable.
    pub(super) first_seq: u64,
    /// Events below this seq may be removed from the database, because the retention record is durable.
    pub(super) durable_first_seq: u64,
    /// The newest durable seq.
    pub(super) last_seq: u64,
}

/// A caller that waits to learn a seq.
pub(super) struct SeqWaiter {
    /// The commit that the caller waits for.
    commit: u64,
    topic: TopicId,
    sender: oneshot::Sender<Result<u64, ReadError>>,
}

impl SeqWaiter {
    /// Sends the result. The caller may have stopped waiting.
    pub(super) fn answer(self, answer: Result<u64, ReadError>) {
        let _ = self.sender.send(answer);
    }
}

impl Leader {
    pub(super) fn new(
        limits: NetworkLimits,
        found: &FoundState,
        outage: watch::Receiver<Option<String>>,
    ) -> Self {
        let topics = found.topics.iter().map(|(id, name, last_seq)| {
            (*id, LeaderTopic { last_seq: *last_seq, ..LeaderTopic::new(name.clone()) })
        });
        let mut leader = Self {
            ids: IdMaker::new(found.newest_id, found.id_mark),
            topics: topics.collect(),
            by_name: found.topics.iter().map(|(id, name, _)| (name.clone(), *id)).collect(),
            topic_number: found.topic_number,
            seq_waiters: VecDeque::new(),
            cuts: VecDeque::new(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            queue_batches: 0,
            newest_commit: found.commit,
            durable_commit: found.commit,
            reported_commit: found.commit,
            reported_ms: found.newest_commit_ms,
            commit_ms: found.newest_commit_ms,
            tail: Tail::new(limits.tail_bytes),
            limits,
            availability: Availability::default(),
            outage,
        };
        leader.raise_firsts(&found.firsts);
        leader.raise_durable_firsts(&found.firsts);
        leader
    }

    /// Queues a batch. `prepared` contains the encoding of each event, or is empty if the queue had no room when the events were
    /// to be encoded.
    pub(super) fn append(
        &mut self,
        batch: &AppendBatch<'_>,
        prepared: Vec<Box<[u8]>>,
        now_ms: i64,
    ) -> Result<Appended, StoreError> {
        let unknown = batch.events.iter().find(|event| !self.topics.contains_key(&event.topic));
        if let Some(event) = unknown {
            return Err(StoreError::UnknownTopic(event.topic.number()));
        }
        let records: Vec<EncodedRecord> = batch.records.iter().map(EncodedRecord::from).collect();
        if batch.events.len() > self.limits.commit_events_max {
            let limit = self.limits.commit_events_max;
            let why = format!("a batch of {} events; a commit takes at most {limit}", batch.events.len());
            return Err(StoreError::TooLarge(why));
        }
        let largest = batch.events.iter().map(|event| EventDocument::bytes_of(event.key, event.body)).max();
        if let Some(bytes) = largest.filter(|&bytes| bytes > self.limits.event_bytes_max) {
            let limit = self.limits.event_bytes_max;
            return Err(StoreError::TooLarge(format!(
                "an event of {bytes} bytes; the database takes at most {limit}"
            )));
        }
        let overhead = self.limits.event_overhead_bytes;
        let event_bytes = |event: &NewEvent<'_>| overhead + EventDocument::bytes_of(event.key, event.body);
        let bytes = batch.events.iter().map(event_bytes).sum::<usize>()
            + records.iter().map(|record| ENTRY_BYTES + record.body.len()).sum::<usize>();
        self.check_room(bytes)?;
        if prepared.len() != batch.events.len() {
            // The events were not encoded, because the queue had no room at that time. It has room now, so the caller must retry.
            self.availability.must_report_room = true;
            return Err(StoreError::Busy);
        }
        self.commit_ms = self.commit_ms.max(now_ms);
        let events = batch
            .events
            .iter()
            .zip(prepared)
            .map(|(event, prepared)| QueuedEvent { document: Arc::new(self.document(event)), prepared });
        let events: Vec<_> = events.collect();
        let late = (!events.is_empty()).then(LateOutcomes::default);
        let count = events.len();
        let change = Change::Batch { events, records };
        let commit = self.enqueue(change, (count, bytes), late.clone().unwrap_or_default());
        Ok(Appended { commit, late })
    }

    fn document(&mut self, event: &NewEvent<'_>) -> EventDocument {
        EventDocument {
            topic: event.topic,
            id: event.id.unwrap_or_else(|| self.ids.next(self.commit_ms)),
            ts: event.ts,
            commit_ms: self.commit_ms,
            key: event.key.map(Box::from),
            body: Box::from(event.body),
            is_tombstone: event.tombstone,
            is_client_id: event.id.is_some(),
        }
    }

    /// Whether appends are refused: during an outage, and after it until the observer was told of its end. Until then the
    /// observer fails all callers that wait for a commit, so an append that was accepted would seem to fail.
    fn refuses_appends(&self) -> bool {
        self.outage.borrow().is_some() || self.availability.is_suspension_reported
    }

    /// Fails if an append of this size is not possible now.
    fn check_room(&mut self, bytes: usize) -> Result<(), StoreError> {
        if let Some(reason) = &self.availability.stopped {
            return Err(reason.clone().into());
        }
        if self.availability.is_closing {
            return Err(Unavailable::Closed.into());
        }
        if bytes > self.limits.commit_bytes_max {
            let limit = self.limits.commit_bytes_max;
            return Err(StoreError::TooLarge(format!(
                "a batch of {bytes} bytes; a commit takes at most {limit}"
            )));
        }
        let is_full = !self.queue.is_empty()
            && (self.queue_bytes + bytes > self.limits.queue_bytes_max
                || self.queue_batches >= self.limits.queue_batches_max);
        if is_full || self.refuses_appends() {
            self.availability.must_report_room = true;
            return Err(StoreError::Busy);
        }
        Ok(())
    }

    /// Adds a change to the newest queued commit, or starts a new commit. Returns the commit's number.
    fn enqueue(&mut self, change: Change, (events, bytes): (usize, usize), late: LateOutcomes) -> u64 {
        let fits = |commit: &PendingCommit| {
            !commit.is_complete
                && commit.bytes + bytes <= self.limits.commit_bytes_target
                && commit.events + events <= self.limits.commit_events_max
        };
        if !self.queue.back().is_some_and(fits) {
            self.newest_commit += 1;
            self.queue.push_back(PendingCommit {
                number: self.newest_commit,
                changes: Vec::new(),
                late: Vec::new(),
                is_complete: false,
                bytes: 0,
                memory_bytes: 0,
                events: 0,
                newest_ms: i64::MIN,
                newest_id: EventId::default(),
            });
        }
        let bytes = bytes + ENTRY_BYTES;
        let memory = bytes + prepared_bytes(&change);
        self.queue_bytes += memory;
        self.queue_batches += 1;
        let (newest_ms, newest_id) = (self.commit_ms, self.ids.newest());
        if let Some(commit) = self.queue.back_mut() {
            commit.bytes += bytes;
            commit.memory_bytes += memory;
            commit.events += events;
            commit.newest_ms = newest_ms;
            commit.newest_id = newest_id;
            if let Change::Batch { .. } = change {
                commit.late.push(late);
            }
            commit.changes.push(change);
        }
        self.newest_commit
    }

    /// Removes the next commit to send from the queue and returns it. Later appends go to other commits.
    pub(super) fn take_commit(&mut self) -> Option<PendingCommit> {
        let commit = self.queue.pop_front()?;
        self.queue_batches -= commit.changes.len();
        self.queue_bytes -= commit.memory_bytes;
        Some(commit)
    }

    /// Applies the database's response to a commit. Called before the commit is reported to the observer.
    pub(super) fn applied(&mut self, commit: &PendingCommit, answer: &CommitAnswer) {
        self.durable_commit = commit.number;
        while self.cuts.front().is_some_and(|(number, _)| *number <= commit.number) {
            if let Some((_, firsts)) = self.cuts.pop_front() {
                self.raise_durable_firsts(&firsts);
            }
        }
        let batches = commit.changes.iter().filter_map(|change| match change {
            Change::Batch { events, .. } => Some(events),
            _ => None,
        });
        for (event, outcome) in
            batches.zip(&answer.outcomes).flat_map(|(events, outcomes)| events.iter().zip(outcomes))
        {
            let Some(topic) = self.topics.get_mut(&event.topic).filter(|_| !outcome.duplicate) else {
                continue;
            };
            topic.last_seq = outcome.seq;
            self.tail.push(outcome.seq, &event.document);
        }
    }

    /// Records that the commit was reported to the observer.
    pub(super) fn reported(&mut self, commit: &PendingCommit) {
        self.reported_commit = commit.number;
        self.reported_ms = self.reported_ms.max(commit.newest_ms);
    }

    pub(super) fn commit_times(&mut self, closing: i64, now_ms: i64) -> CommitTimes {
        self.commit_ms = self.commit_ms.max(now_ms).max(closing.saturating_add(1));
        let closed_ms = self.commit_ms.saturating_sub(1);
        // A queued commit may have the same commit time as the newest reported one, so that time is not complete yet.
        let is_all_reported = self.reported_commit == self.newest_commit;
        let complete_ms = if is_all_reported { closed_ms } else { self.reported_ms.saturating_sub(1) };
        CommitTimes { closed_ms, complete_ms, durable_batch: self.reported_commit }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether appends that were refused may be retried.
    pub(super) fn has_room(&self) -> bool {
        !self.refuses_appends()
            && self.queue_bytes < self.limits.queue_bytes_max
            && self.queue_batches < self.limits.queue_batches_max
    }
}

/// Topics.
impl Leader {
    pub(super) fn ensure_topic(&mut self, name: &Topic) -> Result<TopicId, StoreError> {
        if let Some(&id) = self.by_name.get(name) {
            return Ok(id);
        }
        self.check_room(0)?;
        let number = self.topic_number.checked_add(1);
        self.topic_number = number.ok_or_else(|| StoreError::Other("no topic number is left".to_owned()))?;
        let topic = TopicId::from_number(self.topic_number);
        self.by_name.insert(name.clone(), topic);
        self.topics.insert(topic, LeaderTopic::new(name.clone()));
        self.enqueue(Change::TopicMade { topic, name: name.clone() }, (0, 0), LateOutcomes::default());
        Ok(topic)
    }

    pub(super) fn delete_topic(&mut self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        if !self.topics.contains_key(&topic) {
            return Err(StoreError::UnknownTopic(topic.number()));
        }
        self.check_room(0)?;
        self.topics.remove(&topic);
        self.by_name.remove(name);
        self.tail.remove_topic(topic);
        let record = EncodedRecord::from(&StateRecord::TopicDeleted { topic, name: name.to_string() });
        Ok(self.enqueue(Change::TopicDeleted { topic, record }, (0, 0), LateOutcomes::default()))
    }

    pub(super) fn raise_firsts(&mut self, firsts: &[(TopicId, u64)]) {
        for (topic, first_seq) in firsts {
            if let Some(topic) = self.topics.get_mut(topic) {
                topic.first_seq = topic.first_seq.max(*first_seq);
            }
        }
    }

    /// Raises the first seqs of topics, and remembers the commit with which the record of this retention becomes durable.
    pub(super) fn note_cut(&mut self, commit: u64, firsts: &[(TopicId, u64)]) {
        self.raise_firsts(firsts);
        self.cuts.push_back((commit, firsts.to_vec()));
    }

    fn raise_durable_firsts(&mut self, firsts: &[(TopicId, u64)]) {
        for (topic, first_seq) in firsts {
            if let Some(topic) = self.topics.get_mut(topic) {
                topic.durable_first_seq = topic.durable_first_seq.max(*first_seq);
            }
        }
    }

    /// Events below this seq may be removed from the database.
    pub(super) fn removable_below(&self, topic: TopicId) -> u64 {
        self.topics.get(&topic).map_or(0, |topic| topic.durable_first_seq)
    }

    pub(super) fn stored_topics(&self) -> Vec<StoredTopic> {
        let topics = self.topics.iter();
        topics.map(|(&id, it)| StoredTopic { id, name: it.name.clone(), last_seq: it.last_seq }).collect()
    }

    /// The newest seq that a topic will have when all appends that are queued now are durable. Later appends go to another
    /// commit, so their seqs are higher.
    pub(super) fn appended_seq(&mut self, topic: TopicId) -> Lookup<u64> {
        if let Some(reason) = &self.availability.stopped {
            return Lookup::ready(Err(reason.clone().into()));
        }
        if self.durable_commit == self.newest_commit {
            return Lookup::ready(Ok(self.last_seq(topic)));
        }
        if let Some(newest) = self.queue.back_mut() {
            newest.is_complete = true;
        }
        let (sender, lookup) = Lookup::pending();
        self.seq_waiters.push_back(SeqWaiter { commit: self.newest_commit, topic, sender });
        lookup
    }

    /// Removes the waiters for this commit and earlier ones, and returns each with the newest seq of its topic. Must be called
    /// after this commit was applied, and before the next commit is. The caller answers the waiters after it has released the
    /// lock.
    pub(super) fn resolved_seqs(&mut self, commit: u64) -> Vec<(SeqWaiter, u64)> {
        let count = self.seq_waiters.partition_point(|waiter| waiter.commit <= commit);
        let waiters: Vec<SeqWaiter> = self.seq_waiters.drain(..count).collect();
        let answer = |waiter: SeqWaiter| {
            let last_seq = self.last_seq(waiter.topic);
            (waiter, last_seq)
        };
        waiters.into_iter().map(answer).collect()
    }

    /// Marks the engine as stopped. Returns the callers that wait for a seq.
    pub(super) fn stop(&mut self, reason: &Unavailable) -> VecDeque<SeqWaiter> {
        self.availability.stopped = Some(reason.clone());
        std::mem::take(&mut self.seq_waiters)
    }

    pub(super) fn last_seq(&self, topic: TopicId) -> u64 {
        self.topics.get(&topic).map_or(0, |topic| topic.last_seq)
    }

    pub(super) fn readable(&self, topic: TopicId) -> Result<ReadableSeqs, ReadError> {
        match self.topics.get(&topic) {
            Some(it) => Ok(ReadableSeqs { first_seq: it.first_seq, last_seq: it.last_seq }),
            None => Err(ReadError::UnknownTopic(format!("number {}", topic.number()))),
        }
    }

    pub(super) fn is_own_id(&self, id: EventId) -> bool {
        self.ids.is_own(id)
    }
}

impl LeaderTopic {
    fn new(name: Topic) -> Self {
        Self { name, first_seq: 0, durable_first_seq: 0, last_seq: 0 }
    }
}

/// The size of the prepared encodings of a change's events.
fn prepared_bytes(change: &Change) -> usize {
    match change {
        Change::Batch { events, .. } => events.iter().map(|event| event.prepared.len()).sum(),
        Change::TopicMade { .. } | Change::TopicDeleted { .. } => 0,
    }
}
