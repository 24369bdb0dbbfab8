//! The simulated database server. It outlives the engines that are opened on it.
//!
//! **Invariants:** a commit is applied completely or not at all. It is applied only if its term is the database's term and its
//! number follows the newest one. So only the newer of two engines can write, and a commit that is sent twice is applied only
//! one time. Topic numbers are never reused. Ids and commit times continue where the previous engine ended.

use super::lease::SharedLeaseRecord;
use super::topic_events::TopicEvents;
use crate::engine::network::{Change, CommitAnswer, EventDocument, FoundState};
use crate::engine::outcomes::Published;
use crate::engine::state_fold::StateFold;
use crate::engine::{EventId, TopicId};
use parking_lot::Mutex;
use prombus_log::State as _;
use prombus_protocol::Topic;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of fences that are kept: those of the newest commits.
const FENCES_KEPT: usize = 1_000;

/// A shared database in memory. Clones refer to the same database.
#[derive(Clone)]
pub struct Database {
    tables: Arc<Mutex<Tables>>,
    /// A part of every id that engines of this database generate.
    id_mark: u64,
    lease: SharedLeaseRecord,
    /// The term of the engine that is opened with this handle; `None` means the next term.
    lead_term: Option<u64>,
}

struct Tables {
    /// The term of the engine that leads.
    term: u64,
    /// The name of that engine.
    leader: String,
    /// The number of the newest commit.
    commit: u64,
    /// The newest fences, one per commit, in order.
    fences: VecDeque<Fence>,
    topics: BTreeMap<TopicId, (Topic, TopicEvents)>,
    /// The highest topic number that was ever used.
    topic_number: u32,
    state: StateFold,
    newest_id: EventId,
    newest_commit_ms: i64,
}

/// The entry that every applied commit leaves. Its sender looks for it to find out whether the commit was applied.
struct Fence {
    commit: u64,
    term: u64,
    answer: Arc<CommitAnswer>,
}

/// The state of a commit's fence, as its sender sees it.
pub(super) enum FenceState {
    /// The commit was applied.
    Applied(Arc<CommitAnswer>),
    /// The commit was not applied, and the sender still leads.
    Missing,
    /// The commit was not applied, and another engine leads.
    Deposed { leader: String },
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables = self.tables.lock();
        write!(formatter, "Database(term {}, commit {})", tables.term, tables.commit)
    }
}

impl Database {
    /// An empty database.
    pub fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let mark = MADE.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tables = Tables {
            term: 0,
            leader: String::new(),
            commit: 0,
            fences: VecDeque::new(),
            topics: BTreeMap::new(),
            topic_number: 0,
            state: StateFold::default(),
            newest_id: EventId::default(),
            newest_commit_ms: i64::MIN,
        };
        Self {
            tables: Arc::new(Mutex::new(tables)),
            id_mark: mark >> 42,
            lease: SharedLeaseRecord::default(),
            lead_term: None,
        }
    }

    /// The number of the newest commit.
    pub fn commit(&self) -> u64 {
        self.tables.lock().commit
    }

    /// The term of the engine that leads.
    pub fn term(&self) -> u64 {
        self.tables.lock().term
    }

    /// The numbers and terms of the newest commits, in order.
    pub fn fences(&self) -> Vec<(u64, u64)> {
        self.tables.lock().fences.iter().map(|fence| (fence.commit, fence.term)).collect()
    }

    /// A handle whose engine will lead in this term. Opening the engine fails if an engine with this term or a newer one has
    /// been opened before.
    pub(super) fn for_term(&self, term: u64) -> Self {
        Self { lead_term: Some(term), ..self.clone() }
    }

    pub(super) fn lease(&self) -> &SharedLeaseRecord {
        &self.lease
    }

    /// Makes a new engine the leader. From now on the database refuses commits of the previous engine.
    ///
    /// # Errors
    /// When a state record cannot be decoded, or a newer term has begun.
    pub(super) fn take_over(&self) -> Result<(u64, FoundState), String> {
        let mut tables = self.tables.lock();
        tables.state.all()?;
        let term = self.lead_term.unwrap_or(tables.term + 1);
        if term <= tables.term {
            return Err(format!("{} leads", tables.leader));
        }
        tables.term = term;
        tables.leader = format!("simulated engine of term {}", tables.term);
        tables.push_fence(Arc::default());
        let topics = tables.topics.iter().map(|(&id, (name, it))| (id, name.clone(), it.last_seq)).collect();
        let found = FoundState {
            commit: tables.commit,
            topic_number: tables.topic_number,
            topics,
            firsts: tables.state.firsts(),
            restored: tables.state.restored(),
            newest_id: tables.newest_id,
            newest_commit_ms: tables.newest_commit_ms,
            id_mark: self.id_mark,
        };
        Ok((tables.term, found))
    }

    /// Applies a commit, if its sender leads and the commit is the next one. Otherwise nothing changes, and the sender looks for
    /// the fence of its commit.
    pub(super) fn commit_if(&self, term: u64, commit: u64, changes: &[Change]) -> Option<Arc<CommitAnswer>> {
        let mut tables = self.tables.lock();
        if tables.term != term || tables.commit + 1 != commit {
            return None;
        }
        let mut answer = CommitAnswer::default();
        changes.iter().for_each(|change| tables.apply(change, &mut answer));
        let answer = Arc::new(answer);
        tables.push_fence(Arc::clone(&answer));
        Some(answer)
    }

    /// Looks for the fence of a commit.
    pub(super) fn fence(&self, term: u64, commit: u64) -> FenceState {
        let tables = self.tables.lock();
        let mut found = tables.fences.iter().filter(|fence| fence.commit == commit && fence.term == term);
        match found.next() {
            Some(fence) => FenceState::Applied(Arc::clone(&fence.answer)),
            None if tables.term == term => FenceState::Missing,
            None => FenceState::Deposed { leader: tables.leader.clone() },
        }
    }

    /// Removes events, if the sender leads. Ids that publishers chose stay known for the deduplication period. Returns the
    /// removed bytes.
    pub(super) fn remove(&self, term: u64, topic: TopicId, seqs: &[u64], now_ms: i64) -> Result<u64, String> {
        let mut tables = self.tables.lock();
        if tables.term != term {
            return Err(tables.leader.clone());
        }
        Ok(tables.topics.get_mut(&topic).map_or(0, |(_, events)| events.remove(seqs, now_ms)))
    }

    /// Calls `look` with the events of a topic; with no events if the topic does not exist.
    pub(super) fn with_topic<T>(&self, topic: TopicId, look: impl FnOnce(&TopicEvents) -> T) -> T {
        match self.tables.lock().topics.get(&topic) {
            Some((_, events)) => look(events),
            None => look(&TopicEvents::default()),
        }
    }

    pub(super) fn has_topic(&self, topic: TopicId) -> bool {
        self.tables.lock().topics.contains_key(&topic)
    }

    /// The size of all events in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.lock().topics.values().map(|(_, events)| events.usage(0).bytes).sum()
    }
}

impl Tables {
    fn push_fence(&mut self, answer: Arc<CommitAnswer>) {
        self.commit += 1;
        self.fences.push_back(Fence { commit: self.commit, term: self.term, answer });
        if self.fences.len() > FENCES_KEPT {
            self.fences.pop_front();
        }
    }

    fn apply(&mut self, change: &Change, answer: &mut CommitAnswer) {
        match change {
            Change::TopicMade { topic, name } => {
                self.topic_number = self.topic_number.max(topic.number());
                self.topics.insert(*topic, (name.clone(), TopicEvents::default()));
            }
            Change::Batch { events, records } => {
                let mut outcomes = Vec::with_capacity(events.len());
                for event in events {
                    outcomes.extend(self.insert(&event.document, answer));
                }
                answer.outcomes.push(outcomes);
                records.iter().for_each(|record| self.state.apply(record.tag, &record.body));
            }
            Change::TopicDeleted { topic, record } => {
                self.topics.remove(topic);
                answer.newest.remove(topic);
                self.state.apply(record.tag, &record.body);
            }
        }
    }

    /// Inserts an event, unless the topic already has its id, and returns the outcome. Returns `None` if the topic does not
    /// exist, which does not happen, because the leader creates topics before their events.
    fn insert(&mut self, event: &Arc<EventDocument>, answer: &mut CommitAnswer) -> Option<Published> {
        let (_, topic) = self.topics.get_mut(&event.topic)?;
        let outcome = topic.insert(event);
        self.newest_commit_ms = self.newest_commit_ms.max(event.commit_ms);
        if !event.is_client_id {
            self.newest_id = self.newest_id.max(event.id);
        }
        if !outcome.duplicate {
            answer.newest.insert(event.topic, outcome.seq);
        }
        Some(outcome)
    }
}
