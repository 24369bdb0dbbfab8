//! The backend in this process: the group machine over a [`Store`].
//!
//! ```text
//! publish ──► store ──commit──► Local::committed ──► bells of the groups ──► members pull
//!                ▲                                                             │
//!                └────────── records of groups ◄── flusher ◄── changes ◄───────┘ settle
//! ```
//!
//! `calls.rs` is what callers see, `cell.rs` a group, `member.rs` a member of it, `flush.rs` the way of records to disk, `timer.rs` the thread that ends
//! leases, `stop_clock.rs` the clock by which they run, `groups.rs` what is done to whole groups, `topics.rs` what is done to whole topics, `letters.rs` the dead letters,
//! `line.rs` publishes that wait for room, `states.rs` the newest events by key, `keeper.rs` the thread that applies retention,
//! cleans and takes snapshots.

mod age_samples;
mod arrival;
mod calls;
mod cell;
mod feed;
mod flush;
mod group_table;
mod groups;
mod keeper;
mod kept;
mod letters;
mod line;
mod member;
mod merged;
pub(crate) mod quiet;
mod side_by_side;
mod states;
mod stop_clock;
mod timer;
mod tombstones;
mod topics;

use crate::backend::uuid_of;
use crate::clock::Clock;
use crate::config::Limits;
use crate::delivery::{ErrorBudget, GiveUp, Millis, SourceId};
use crate::error::{OpenError, PublishError, ReadError, StoreError, Unavailable};
use crate::publish::{Line as _, Place, PublishBatch, Published};
use crate::settings::SettingsTable;
use crate::store::{AppendBatch, CommitWatch, NewEvent, Outcome, Store, StoreObserver, TopicId};
use arrival::Arrivals;
use cell::{Core, GroupCell};
use flush::Flusher;
use foldhash::fast::RandomState;
use group_table::GroupTable;
use keeper::Keeper;
use parking_lot::{Mutex, RwLock};
use prombus_protocol::{Start, Topic};
use quiet::{Quiet, wake};
use states::States;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use stop_clock::StopClock;
use timer::Timer;

/// So many bytes of publishes wait in line at most; more wait outside.
const LINE_BYTES_MAX: usize = 64 << 20;
/// So many lists are kept for another use.
const SPARES_MAX: usize = 64;
/// So often a publish is tried whose topics are deleted under it.
const RETRIES_MAX: usize = 100;
/// A woken member that does not come is passed over after this time.
const CALL_AGAIN_MS: Millis = 20;

/// Groups over a store, in this process. A handle: clones share everything; the last one to go, members included, closes it.
#[derive(Clone)]
pub struct LocalBackend {
    handle: Arc<Handle>,
}

/// Ends everything when it goes.
pub(crate) struct Handle {
    pub(crate) local: Arc<Local>,
    timer_thread: Mutex<Option<JoinHandle<()>>>,
    keeper_thread: Mutex<Option<JoinHandle<()>>>,
}

/// What all parts share.
pub(crate) struct Local {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    limits: Limits,
    error_budget: ErrorBudget,
    pub(crate) watch: Arc<CommitWatch>,
    topics: RwLock<TopicTable>,
    groups: RwLock<GroupTable>,
    /// Held while a topic or a group is made, so that no pattern misses a topic. The next group's number.
    registry: Mutex<u32>,
    pub(crate) flusher: Flusher,
    arrivals: Arrivals,
    settings: RwLock<SettingsTable>,
    settings_version: AtomicU64,
    /// Small values that outlive the process with the store.
    kept: kept::KeptValues,
    states: States,
    keeper: Arc<Keeper>,
    /// Memory of batches and lists, used again.
    spare_batches: Mutex<Vec<PublishBatch>>,
    spare_outcomes: Mutex<Vec<Vec<Outcome>>>,
    /// Publishes that found no room, in order.
    line: Mutex<Waiting>,
    line_length: AtomicUsize,
    line_turn: Mutex<()>,
    timer: Arc<Timer>,
    is_closed: AtomicBool,
    closing: Mutex<()>,
}

#[derive(Default)]
struct TopicTable {
    by_name: HashMap<Topic, TopicId, RandomState>,
    /// The same in order, for lists and patterns.
    in_order: BTreeMap<Topic, TopicId>,
    /// How many of them are no dead letters: the bus makes those itself, and they do not count against the limit.
    counted: usize,
    readers: HashMap<TopicId, Vec<(Arc<GroupCell>, SourceId)>, RandomState>,
}

#[derive(Default)]
struct Waiting {
    places: VecDeque<Arc<Place>>,
    bytes: usize,
}

/// What is left to do when a group's lock is free again.
#[derive(Default)]
pub(crate) struct Aftermath {
    given_up: Vec<GiveUp>,
    /// Events wait for records to be durable.
    is_urgent: bool,
}

impl TopicTable {
    /// Forgets a topic; answers who reads it.
    fn remove(&mut self, name: &Topic) -> Vec<(Arc<GroupCell>, SourceId)> {
        let Some(id) = self.by_name.remove(name) else { return Vec::new() };
        self.in_order.remove(name);
        self.counted -= usize::from(!name.is_dead_letter());
        self.readers.remove(&id).unwrap_or_default()
    }

    /// Topics whose names begin with `prefix`, past `after`, in order.
    fn named<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'a Topic, TopicId)> + 'a {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let topics = self.in_order.range::<str, _>((start, Bound::Unbounded));
        topics.take_while(move |(name, _)| name.as_str().starts_with(prefix)).map(|(name, &id)| (name, id))
    }

    fn add(&mut self, name: Topic, id: TopicId, readers: Vec<(Arc<GroupCell>, SourceId)>) {
        self.counted += usize::from(!name.is_dead_letter());
        self.in_order.insert(name.clone(), id);
        self.by_name.insert(name, id);
        // Commits look here: topics that nobody reads cost them nothing.
        if !readers.is_empty() {
            self.readers.insert(id, readers);
        }
    }
}

impl Aftermath {
    fn is_empty(&self) -> bool {
        self.given_up.is_empty() && !self.is_urgent
    }
}

impl LocalBackend {
    /// Starts groups over a store.
    ///
    /// # Errors
    /// [`OpenError`] when the groups cannot be read, or no thread can be started.
    pub fn open(store: Arc<dyn Store>, clock: Arc<dyn Clock>, limits: Limits) -> Result<Self, OpenError> {
        // Only with a thread that looks at it regularly can the clock tell when the process was stopped.
        let clock = Arc::new(StopClock::new(clock));
        let backend = Self::open_without_timer(store, Arc::clone(&clock) as Arc<dyn Clock>, limits)?;
        let timer = Arc::clone(&backend.handle.local.timer);
        // The thread must not keep the backend alive while it sleeps.
        let local = Arc::downgrade(&backend.handle.local);
        let thread = std::thread::Builder::new().name("prombus-timer".to_owned());
        let thread = thread.spawn(move || timer.run(&local, &clock));
        *backend.handle.timer_thread.lock() = Some(thread.map_err(OpenError::Thread)?);
        let keeper = Arc::clone(&backend.handle.local.keeper);
        let local = Arc::downgrade(&backend.handle.local);
        let thread = std::thread::Builder::new().name("prombus-keeper".to_owned());
        let thread = thread.spawn(move || keeper.run(&local));
        *backend.handle.keeper_thread.lock() = Some(thread.map_err(OpenError::Thread)?);
        Ok(backend)
    }

    /// Starts groups over a store, with no thread of its own: somebody calls [`tick`](Self::tick).
    ///
    /// # Errors
    /// [`OpenError`] when the groups cannot be read.
    pub fn open_without_timer(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        let local = Arc::new(Local {
            clock,
            limits,
            error_budget: ErrorBudget::default(),
            watch: Arc::default(),
            topics: RwLock::default(),
            groups: RwLock::default(),
            registry: Mutex::new(1),
            flusher: Flusher::default(),
            arrivals: Arrivals::default(),
            settings: RwLock::default(),
            settings_version: AtomicU64::new(1),
            kept: kept::KeptValues::new(store.kept()),
            states: States::default(),
            keeper: Arc::default(),
            spare_batches: Mutex::default(),
            spare_outcomes: Mutex::default(),
            line: Mutex::default(),
            line_length: AtomicUsize::new(0),
            line_turn: Mutex::default(),
            timer: Arc::default(),
            is_closed: AtomicBool::new(false),
            closing: Mutex::default(),
            store,
        });
        local.restore_settings()?;
        local.restore()?;
        local.keeper.opened();
        local.watch.advance(local.store.durable_batch());
        local.store.observe(Arc::new(Ears { local: Arc::downgrade(&local) }));
        Ok(Self {
            handle: Arc::new(Handle {
                local,
                timer_thread: Mutex::new(None),
                keeper_thread: Mutex::new(None),
            }),
        })
    }

    /// Does what is due by the clock, in a backend without a thread. Answers when to come again, by the steady clock.
    pub fn tick(&self) -> Option<Millis> {
        self.handle.local.timer.tick(&self.handle.local)
    }

    /// Closes without a runtime; waits for threads and for the disk.
    ///
    /// # Errors
    /// [`Unavailable`] when writing had stopped before.
    pub fn close_blocking(&self) -> Result<(), Unavailable> {
        self.handle.close()
    }

    /// Writes down what groups have to say, now; for tests that step through everything.
    pub fn flush(&self) -> bool {
        let local = &self.handle.local;
        local.flusher.flush(&*local.store, &*local.clock)
    }
}

/// What the store tells.
struct Ears {
    local: Weak<Local>,
}

impl StoreObserver for Ears {
    fn committed(&self, batch: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>) {
        let Some(local) = self.local.upgrade() else { return };
        // Woken when no lock is held: nobody knows what a waker does.
        let mut called = Vec::new();
        let topics = local.topics.read();
        for (topic, newest_seq) in newest {
            local.arrivals.committed(topic, &mut called);
            for (cell, source) in topics.readers.get(&topic).into_iter().flatten() {
                let (waker, others_wait) = cell.notice(*source, newest_seq);
                called.extend(waker);
                if others_wait {
                    local.timer.arm(cell, local.clock.steady_ms() + CALL_AGAIN_MS);
                }
            }
        }
        drop(topics);
        called.into_iter().for_each(wake);
        local.watch.advance(batch);
        local.flusher.committed(batch);
        if local.flusher.is_demanded() {
            local.flusher.flush(&*local.store, &*local.clock);
        }
    }

    fn room(&self) {
        let Some(local) = self.local.upgrade() else { return };
        local.watch.room();
        if local.flusher.is_demanded() {
            local.flusher.flush(&*local.store, &*local.clock);
        }
    }

    fn unavailable(&self, reason: Unavailable) {
        let Some(local) = self.local.upgrade() else { return };
        local.watch.fail(reason);
        let cells = local.groups.read().all();
        cells.iter().for_each(|cell| cell.wake_all());
        local.arrivals.wake_all();
    }
}

impl Local {
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<(), Unavailable> {
        if self.is_closed() { Err(Unavailable::Closed) } else { Ok(()) }
    }

    /// Whether publishes wait in line.
    pub(crate) fn has_line(&self) -> bool {
        self.line_length.load(Ordering::SeqCst) > 0
    }

    fn topic_id(&self, topic: &Topic) -> Option<TopicId> {
        self.topics.read().by_name.get(topic).copied()
    }

    /// The id of a topic, which is made if it is not there and the limit allows.
    fn ensure_topic(&self, topic: &Topic, limit: Option<usize>) -> Result<TopicId, TopicRefused> {
        if let Some(id) = self.topic_id(topic) {
            return Ok(id);
        }
        let registry = self.registry.lock();
        self.ensure_topic_locked(topic, limit, &registry)
    }

    /// Makes a topic; `_registry` proves that no group is made meanwhile.
    fn ensure_topic_locked(
        &self,
        topic: &Topic,
        limit: Option<usize>,
        _registry: &u32,
    ) -> Result<TopicId, TopicRefused> {
        if let Some(id) = self.topic_id(topic) {
            return Ok(id);
        }
        if let Some(limit) = limit.filter(|&limit| self.topics.read().counted >= limit) {
            return Err(TopicRefused::TooMany(limit));
        }
        let id = self.store.ensure_topic(topic).map_err(TopicRefused::Store)?;
        let cells = self.groups.read().wanting(topic);
        let readers = cells.into_iter().map(|cell| {
            let source = cell.add_topic(id, topic, crate::delivery::Restored::default());
            // The lease mark of the new topic rides on the commit of its first event, so that no pull waits for it.
            let mut core = cell.core.lock();
            core.machine.prepare_mark(source);
            self.queue_changes(&cell, &mut core);
            drop(core);
            (cell, source)
        });
        let readers = readers.collect();
        // Readers of patterns first: as soon as the table has the topic, events may be published to it.
        self.arrivals.tell_feeds(id, topic);
        self.topics.write().add(topic.clone(), id, readers);
        self.arrivals.made(topic);
        if self.settings.read().settings(topic.as_str()).has_snapshots() {
            self.keeper.made(id, self.clock.steady_ms());
        }
        Ok(id)
    }

    /// The events of a batch, for the store; false when one of their topics is not there yet.
    fn with_topics<'a>(&self, batch: &'a PublishBatch, into: &mut Vec<NewEvent<'a>>) -> bool {
        let topics = self.topics.read();
        let mut last: Option<(usize, TopicId)> = None;
        for (at, place) in batch.topic_places().enumerate() {
            let id = match last {
                Some((known, id)) if known == place => id,
                _ => match topics.by_name.get(&batch.topics()[place]) {
                    Some(&id) => id,
                    None => return false,
                },
            };
            last = Some((place, id));
            into.push(batch.event(at, id));
        }
        true
    }

    /// Makes the topics of a batch, all of them or none.
    fn ensure_topics(&self, batch: &PublishBatch) -> Result<(), TopicRefused> {
        let is_known = |topic: &Topic| self.topics.read().by_name.contains_key(topic);
        let registry = self.registry.lock();
        let new: BTreeSet<&Topic> = batch.topics().iter().filter(|topic| !is_known(topic)).collect();
        let counted = new.iter().filter(|topic| !topic.is_dead_letter()).count();
        if counted > 0 && self.topics.read().counted + counted > self.limits.max_topics {
            return Err(TopicRefused::TooMany(self.limits.max_topics));
        }
        for topic in new {
            self.ensure_topic_locked(topic, None, &registry)?;
        }
        Ok(())
    }

    /// Puts a batch into the store.
    fn append(&self, batch: &PublishBatch) -> Result<(u64, Vec<Published>), PublishRefused> {
        let mut events: Vec<NewEvent<'_>> = Vec::with_capacity(batch.len());
        let mut outcomes = self.spare_outcomes.lock().pop().unwrap_or_default();
        let mut tries = 0;
        let appended = loop {
            events.clear();
            outcomes.clear();
            while !self.with_topics(batch, &mut events) {
                self.ensure_topics(batch)?;
                events.clear();
            }
            match self.append_with_records(&events, &mut outcomes) {
                // Deleted between the look and the append: it is made again.
                Err(StoreError::UnknownTopic(_)) if tries < RETRIES_MAX => tries += 1,
                appended => break appended,
            }
        };
        let published = outcomes.iter().map(|outcome| Published {
            id: uuid_of(outcome.id),
            seq: outcome.seq,
            duplicate: outcome.duplicate,
        });
        let published = published.collect();
        let mut spare = self.spare_outcomes.lock();
        if spare.len() < SPARES_MAX && outcomes.capacity() <= 4_096 {
            spare.push(outcomes);
        }
        drop(spare);
        Ok((appended.map_err(PublishRefused::from)?, published))
    }

    /// The seq of the first event that a group which starts there would get.
    fn locate_in(&self, topic: &Topic, start: Start) -> Result<u64, ReadError> {
        self.check_open()?;
        let id = self.topic_id(topic).ok_or_else(|| ReadError::UnknownTopic(topic.to_string()))?;
        Ok(self.floor_for(&[id], start)?[0] + 1)
    }

    /// An empty batch.
    fn batch(&self) -> PublishBatch {
        let now_ms = self.clock.wall_ms();
        let Some(mut batch) = self.spare_batches.lock().pop() else {
            return PublishBatch::new(now_ms, self.limits.max_payload_bytes);
        };
        batch.reset(now_ms);
        batch
    }

    /// Keeps the memory of a batch that is in line.
    fn keep(&self, batch: PublishBatch) {
        let mut spare = self.spare_batches.lock();
        if spare.len() < SPARES_MAX && batch.is_worth_keeping() {
            spare.push(batch);
        }
    }

    /// Appends events; records of groups that wait ride along.
    fn append_with_records(
        &self,
        events: &[NewEvent<'_>],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<u64, StoreError> {
        let _quiet = Quiet::enter();
        let sending = if self.flusher.is_dirty() { self.flusher.try_lock() } else { None };
        let Some(mut sending) = sending else { return self.append_alone(events, outcomes) };
        let mut appended =
            self.flusher.append(&mut sending, &*self.store, &*self.clock, events, outcomes, false);
        if appended.is_err() {
            // The records stay behind, and do not wait for the next publish.
            self.flusher.ask();
        }
        if let Err(StoreError::TooLarge(_)) = appended {
            // Perhaps only because of what would ride along.
            appended = self.append_alone(events, outcomes);
        }
        drop(sending);
        self.flusher.after(&*self.store, &*self.clock);
        appended
    }

    fn append_alone(&self, events: &[NewEvent<'_>], outcomes: &mut Vec<Outcome>) -> Result<u64, StoreError> {
        let batch = self.store.append(&AppendBatch { events, ..AppendBatch::default() }, outcomes)?;
        self.flusher.appended(batch);
        Ok(batch)
    }

    /// Takes from a group's machine what it wants done. Called with its lock held.
    pub(crate) fn write_down(&self, cell: &Arc<GroupCell>, core: &mut Core) -> Aftermath {
        let is_urgent = self.queue_changes(cell, core);
        if let Some(at) = core.machine.wake_at() {
            self.timer.arm(cell, at);
        }
        Aftermath { given_up: core.machine.take_given_up(), is_urgent }
    }

    /// Queues what a group must write down for the next append. Answers whether members wait for it. Called with the group's
    /// lock held.
    fn queue_changes(&self, cell: &Arc<GroupCell>, core: &mut Core) -> bool {
        let mut is_urgent = false;
        let changes = core.machine.changes_mut();
        if !changes.is_empty() {
            let is_wanted = changes.is_wanted;
            let mut delta = cell.delta.lock();
            let generation = delta.take_in(changes);
            if !std::mem::replace(&mut delta.is_queued, true) {
                self.flusher.enqueue(cell);
            }
            drop(delta);
            is_urgent = core.machine.gate(generation);
            if is_wanted {
                self.timer.arm_flush(self.clock.steady_ms());
            }
        }
        is_urgent | core.machine.take_mark_awaited()
    }

    /// Does what was left, without the group's lock.
    pub(crate) fn follow_up(&self, cell: &Arc<GroupCell>, aftermath: Aftermath) {
        if cell.is_deleted.load(Ordering::Acquire) {
            return;
        }
        if aftermath.is_urgent {
            self.flusher.demand(&*self.store, &*self.clock);
        }
        for give_up in aftermath.given_up {
            self.write_letter(cell, give_up);
        }
    }

    /// The timer's work on one group.
    pub(crate) fn look_at(&self, cell: &Arc<GroupCell>, now: Millis) {
        if self.expire(cell, now) {
            return;
        }
        let mut core = cell.core.lock();
        core.machine.advance(now);
        let aftermath = self.write_down(cell, &mut core);
        cell.grant_noticed(&mut core);
        let has_work = core.machine.has_work();
        drop(core);
        self.follow_up(cell, aftermath);
        // Leases that ran out have made room.
        cell.wake_full(None);
        if has_work {
            // Whoever was called before may have stopped waiting: now all are.
            cell.wake_waiters();
        }
    }

    /// Calls the member that waits longest. Should it not come, all are called in a moment.
    pub(crate) fn call(&self, cell: &Arc<GroupCell>) {
        if cell.wake_one() {
            self.timer.arm(cell, self.clock.steady_ms() + CALL_AGAIN_MS);
        }
    }

    fn close(&self) -> Result<(), Unavailable> {
        // A second closer waits until the first is done.
        let _closing = self.closing.lock();
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // What was put in line before is published, also if nobody awaits it.
        loop {
            self.advance();
            if !self.has_line() || self.watch.unavailable().is_some() || !self.store.wait_for_room() {
                break;
            }
        }
        let cells = self.groups.read().all();
        let now = self.clock.steady_ms();
        for cell in &cells {
            let mut core = cell.core.lock();
            core.machine.close(now);
            self.write_down(cell, &mut core);
        }
        loop {
            // Whoever sends just now may fail and leave its records behind.
            drop(self.flusher.lock());
            if !self.flusher.is_dirty() {
                break;
            }
            if self.flusher.flush(&*self.store, &*self.clock) {
                continue;
            }
            // On a full disk there may never be room; who closes does not wait for that.
            let is_over = self.watch.unavailable().is_some() || self.flusher.is_refused();
            if is_over || !self.store.wait_for_room() {
                tracing::error!("the last acks could not be written; their events will be delivered again");
                break;
            }
        }
        let closed = self.store.close();
        self.watch.advance(self.store.durable_batch());
        self.flusher.committed(self.store.durable_batch());
        self.watch.fail(Unavailable::Closed);
        let left = std::mem::take(&mut self.line.lock().places);
        left.iter().for_each(|place| place.finish(Err(Unavailable::Closed.into())));
        cells.iter().for_each(|cell| cell.wake_all());
        self.arrivals.wake_all();
        closed
    }
}

/// Why a topic was not made.
pub(crate) enum TopicRefused {
    TooMany(usize),
    Store(StoreError),
}

/// Why a batch is not in line.
enum PublishRefused {
    Busy,
    Failed(PublishError),
}

impl From<PublishError> for PublishRefused {
    fn from(error: PublishError) -> Self {
        Self::Failed(error)
    }
}

impl From<StoreError> for PublishRefused {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy => Self::Busy,
            other => Self::Failed(other.into()),
        }
    }
}

impl From<TopicRefused> for PublishRefused {
    fn from(refused: TopicRefused) -> Self {
        match refused {
            TopicRefused::TooMany(limit) => Self::Failed(PublishError::TooManyTopics(limit)),
            TopicRefused::Store(error) => error.into(),
        }
    }
}

/// Reads a lot, on a thread that may take its time. Outside of a runtime whoever asks is one.
async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    if tokio::runtime::Handle::try_current().is_err() {
        return read();
    }
    let answer = tokio::task::spawn_blocking(read).await;
    answer.unwrap_or_else(|error| Err(ReadError::Failed(format!("reading panicked: {error}"))))
}

/// Waits for a thread to end, unless it is this one.
fn join(thread: &Mutex<Option<JoinHandle<()>>>) {
    let thread = thread.lock().take();
    if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
        let _ = thread.join();
    }
}

impl Handle {
    fn close(&self) -> Result<(), Unavailable> {
        self.local.timer.stop();
        self.local.keeper.stop();
        join(&self.timer_thread);
        let closed = self.local.close();
        // What it cleans ends when the store is closed.
        join(&self.keeper_thread);
        closed
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.local.is_closed() {
            return;
        }
        if crate::store::is_store_thread() {
            // Closing waits for this very thread. Some executors drop what a waker held right where it wakes.
            let local = Arc::clone(&self.local);
            self.local.timer.stop();
            self.local.keeper.stop();
            let closer = std::thread::Builder::new().name("prombus-close".to_owned());
            if let Err(error) = closer.spawn(move || local.close()) {
                tracing::error!("the bus could not be closed: {error}");
            }
            return;
        }
        // Whoever wants to know whether it worked calls `close`.
        let _ = self.close();
    }
}

impl std::fmt::Debug for LocalBackend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let local = &self.handle.local;
        let topics = local.topics.read().by_name.len();
        write!(formatter, "LocalBackend({topics} topics, {} groups)", local.groups.read().len())
    }
}
