//! The log itself: opening, appending, reading, closing. Everything else in this crate stands behind [`Log`].

use crate::append::{Append, AppendState, NewState, Outcomes, Ticket, TopicId};
use crate::backup::{BackupProgress, BackupReport};
use crate::clean::{CleanOptions, CleanReport, Liveness};
use crate::commit::{Committer, Step};
use crate::error::{AppendError, BackupError, Fault, OpenError, ReadError, Unavailable};
use crate::find::{IdFile, id_files};
use crate::housekeeping::Housekeeper;
use crate::id::{EventId, KeyedHash, is_own};
use crate::jobs::Jobs;
use crate::kept_ids::KeptIds;
use crate::losses::Losses;
use crate::named_faults::NamedFaults;
use crate::observer::{Notice, Observer};
use crate::options::Options;
use crate::poison::Poison;
use crate::reader::{Chunk, ReadLimit};
use crate::recovery;
use crate::state::{NoState, State};
use crate::storage::{Folder, Lock, Storage};
use crate::tail::BufferPool;
use crate::unreadable::{ReadHealth, Unreadable, UnreadableEvents};
use crate::usage::TopicUsage;
use crate::view::View;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Free buffers that are kept for batches, and as much for reads.
const POOLED_BYTES: usize = 32 << 20;
/// How often the housekeeper looks again when something could not be done.
const HOUSEKEEPING_RETRY: Duration = Duration::from_secs(1);

/// A durable log in a folder. A handle: clones share the log; the last one to go closes it.
#[derive(Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

/// A topic of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its internal id.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// The newest durable seq; zero for none.
    pub last_seq: u64,
}

/// Figures of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Segments that hold records.
    pub segments: usize,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Bytes that index filters and tables take in memory.
    pub index_memory_bytes: usize,
    /// The newest durable batch.
    pub durable_batch: u64,
    /// Places of damage named since the log was opened.
    pub faults: u64,
    /// Damaged events named since the log was opened; each counts once.
    pub corrupt_events: u64,
}

/// What the threads and all handles share.
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) options: Options,
    pub(crate) hash: KeyedHash,
    pub(crate) log_id: u64,
    pub(crate) append: Mutex<AppendState>,
    /// Appenders wait here, with the append lock, for room.
    pub(crate) room: Condvar,
    pub(crate) view: RwLock<View>,
    pub(crate) topics: RwLock<TopicTable>,
    pub(crate) durable: Durable,
    pub(crate) poison: Poison,
    /// How many segments' ids went from memory to index files; mirrors `RecentIds`.
    pub(crate) forgotten_ids: AtomicU64,
    /// An append was refused because it has to know which ids the batches under way have: it is told when they are durable.
    pub(crate) wants_durable: AtomicBool,
    /// The ids of events that are gone, and still count as duplicates.
    pub(crate) kept: RwLock<Arc<Vec<Arc<KeptIds>>>>,
    /// Where publishers' ids are looked up.
    pub(crate) id_files: RwLock<Arc<Vec<IdFile>>>,
    pub(crate) batch_pool: Arc<BufferPool>,
    pub(crate) read_pool: Arc<BufferPool>,
    pub(crate) state: Mutex<Box<dyn State>>,
    committer: Mutex<Committer>,
    pub(crate) housekeeper: Mutex<Housekeeper>,
    pub(crate) jobs: Jobs,
    commit_bell: Bell,
    house_bell: Bell,
    /// What could not be read.
    pub(crate) unreadable: Unreadable,
    /// What of it counts as damaged.
    pub(crate) losses: Mutex<Losses>,
    named_faults: Mutex<NamedFaults>,
}

/// The names of topics, also of those that are not durable yet.
#[derive(Default)]
pub(crate) struct TopicTable {
    by_name: HashMap<Arc<str>, TopicId>,
    names: HashMap<TopicId, Arc<str>>,
}

impl TopicTable {
    pub(crate) fn add(&mut self, id: TopicId, name: Arc<str>) {
        self.by_name.insert(Arc::clone(&name), id);
        self.names.insert(id, name);
    }

    pub(crate) fn is_alive(&self, id: TopicId) -> bool {
        self.names.get(&id).is_some_and(|name| self.by_name.get(name) == Some(&id))
    }

    pub(crate) fn remove(&mut self, id: TopicId) {
        if let Some(name) = self.names.get(&id) {
            self.by_name.remove(name);
        }
    }
}

/// The newest durable batch, and those who wait for one.
#[derive(Default)]
pub(crate) struct Durable {
    batch: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Durable {
    pub(crate) fn new(batch: u64) -> Self {
        Self { batch: AtomicU64::new(batch), ..Self::default() }
    }

    pub(crate) fn get(&self) -> u64 {
        self.batch.load(Ordering::Acquire)
    }

    /// One wake-up for all who wait, whatever the batch holds.
    pub(crate) fn advance(&self, batch: u64) {
        self.batch.store(batch, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }
}

/// Wakes one thread, which finds out itself what there is to do. Ringing an already rung bell costs one atomic load.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bell {
    fn ring(&self) {
        if !self.rung.load(Ordering::SeqCst) && !self.rung.swap(true, Ordering::SeqCst) {
            drop(self.lock.lock());
            self.wake.notify_one();
        }
    }

    fn wait(&self, timeout: Option<Duration>) {
        let mut guard = self.lock.lock();
        while !self.rung.swap(false, Ordering::SeqCst) {
            match timeout {
                None => self.wake.wait(&mut guard),
                Some(timeout) => {
                    if self.wake.wait_for(&mut guard, timeout).timed_out() {
                        return;
                    }
                }
            }
        }
    }
}

/// What recovery hands over.
pub(crate) struct Parts {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) options: Options,
    pub(crate) hash: KeyedHash,
    pub(crate) losses: Losses,
    pub(crate) log_id: u64,
    pub(crate) append: AppendState,
    pub(crate) view: View,
    pub(crate) kept: Vec<Arc<KeptIds>>,
    pub(crate) state: Box<dyn State>,
    pub(crate) committer: Committer,
    pub(crate) housekeeper: Housekeeper,
    pub(crate) named_faults: NamedFaults,
}

impl Shared {
    fn new(parts: Parts) -> Self {
        let mut topics = TopicTable::default();
        for (id, topic) in parts.view.topics.iter().enumerate() {
            if let Some(topic) = topic.as_ref().filter(|topic| !topic.is_deleted) {
                topics.add(TopicId(id as u32), Arc::clone(&topic.name));
            }
        }
        Self {
            storage: parts.storage,
            hash: parts.hash,
            log_id: parts.log_id,
            append: Mutex::new(parts.append),
            room: Condvar::new(),
            topics: RwLock::new(topics),
            durable: Durable::new(parts.view.mark.batch),
            id_files: RwLock::new(Arc::new(id_files(&parts.view.segments, &parts.kept, &[]))),
            kept: RwLock::new(Arc::new(parts.kept)),
            view: RwLock::new(parts.view),
            poison: Poison::default(),
            forgotten_ids: AtomicU64::new(0),
            wants_durable: AtomicBool::new(false),
            batch_pool: BufferPool::new(POOLED_BYTES),
            read_pool: BufferPool::new(POOLED_BYTES),
            state: Mutex::new(parts.state),
            committer: Mutex::new(parts.committer),
            housekeeper: Mutex::new(parts.housekeeper),
            jobs: Jobs::default(),
            commit_bell: Bell::default(),
            house_bell: Bell::default(),
            unreadable: Unreadable::new(),
            losses: Mutex::new(parts.losses),
            named_faults: Mutex::new(parts.named_faults),
            options: parts.options,
        }
    }

    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.options.observer
    }

    /// Appenders that wait for room may look again.
    pub(crate) fn notify_room(&self) {
        self.room.notify_all();
        self.observer().room();
    }

    pub(crate) fn wake_committer(&self) {
        self.commit_bell.ring();
    }

    pub(crate) fn wake_housekeeper(&self) {
        self.house_bell.ring();
    }

    /// Stops writing for good, and tells everyone who waits.
    pub(crate) fn poison(&self, reason: String) {
        if self.poison.set(reason.clone()) {
            self.observer().notice(&Notice::Poisoned { reason });
        }
        self.jobs.stop();
        self.durable.wake();
        drop(self.append.lock());
        self.notify_room();
        self.wake_committer();
        self.wake_housekeeper();
    }

    pub(crate) fn topic_id(&self, name: &str) -> Option<TopicId> {
        self.topics.read().by_name.get(name).copied()
    }

    pub(crate) fn topic_name(&self, topic: u32) -> Option<String> {
        self.topics.read().names.get(&TopicId(topic)).map(ToString::to_string)
    }

    /// Counts and names damage, once.
    pub(crate) fn report_fault(&self, fault: Fault) {
        if self.named_faults.lock().add(&fault) {
            self.observer().notice(&Notice::Damaged(fault));
        }
    }

    /// Bytes of records in all segments.
    pub(crate) fn log_bytes(&self) -> u64 {
        let view = self.view.read();
        view.segments.iter().map(|segment| segment.sealed().unwrap_or(view.mark.position)).sum()
    }

    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Unavailable> {
        let durable = &self.durable;
        if durable.get() >= ticket.batch {
            return Ok(());
        }
        let mut guard = durable.lock.lock();
        while durable.get() < ticket.batch {
            self.poison.check()?;
            durable.changed.wait(&mut guard);
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.append.lock().is_closed
    }

    fn run_committer(&self) {
        loop {
            let step = self.committer.lock().step(self);
            match step {
                Step::Worked => {}
                Step::Stopped => return,
                Step::Idle if self.is_closed() => return,
                Step::Idle => self.commit_bell.wait(None),
            }
        }
    }

    fn run_housekeeper(&self) {
        loop {
            // Not in the match, where the lock would be held to its end: through the wait, while cleaning waits for it.
            let step = self.housekeeper.lock().step(self);
            match step {
                Step::Worked => {}
                Step::Stopped => return,
                Step::Idle if self.is_closed() => return,
                Step::Idle => self.house_bell.wait(Some(HOUSEKEEPING_RETRY)),
            }
        }
    }
}

/// Keeps the threads and the folder's lock; dropped with the last [`Log`].
struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn Lock>>>,
}

impl Handle {
    fn close(&self) -> Result<(), Unavailable> {
        // Held to the end: a second closer must not give the folder away while the first still writes.
        let mut lock = self.lock.lock();
        let was_closed = std::mem::replace(&mut self.shared.append.lock().is_closed, true);
        self.shared.jobs.stop();
        self.shared.notify_room();
        self.shared.wake_committer();
        self.shared.wake_housekeeper();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked must not be mistaken for one that finished its work.
            if thread.join().is_err() {
                self.shared.poison("a thread of the log panicked".to_owned());
            }
        }
        // They write into the folder, which may belong to someone else from here on.
        self.shared.jobs.wait();
        if !was_closed {
            while self.shared.committer.lock().step(&self.shared) == Step::Worked {}
            if self.shared.poison.get().is_none() {
                self.shared.housekeeper.lock().finish(&self.shared);
            }
        }
        lock.take();
        self.shared.poison.check()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Whoever wants to know whether it worked calls `close`.
        let _ = self.close();
    }
}

impl Log {
    /// Opens the log in a folder, or makes one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open(folder: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_with_state(folder, options, Box::new(NoState))
    }

    /// Opens the log in a folder, or makes one there, and replays the state records into `state`.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open_with_state(
        folder: &Path,
        options: Options,
        state: Box<dyn State>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let opened = Folder::open_or_create(folder);
        let storage =
            opened.map_err(|error| recovery::open_error(&folder.display().to_string(), "open", error))?;
        Self::open_storage(Arc::new(storage), options, state)
    }

    /// Opens the log on any storage.
    ///
    /// # Errors
    /// See [`OpenError`]; the storage is left as it was.
    pub fn open_storage(
        storage: Arc<dyn Storage>,
        options: Options,
        state: Box<dyn State>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let threads = options.threads;
        let (parts, lock) = recovery::open(storage, options, state)?;
        let shared = Arc::new(Shared::new(parts));
        let handle = Handle {
            shared: Arc::clone(&shared),
            threads: Mutex::new(Vec::new()),
            lock: Mutex::new(Some(lock)),
        };
        if threads {
            let spawn = |name: &str, run: fn(&Shared)| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                    let guard = PanicGuard { shared: &shared };
                    run(&shared);
                    std::mem::forget(guard);
                })
            };
            let started = spawn("prombus-commit", Shared::run_committer).and_then(|commit| {
                handle.threads.lock().push(commit);
                spawn("prombus-house", Shared::run_housekeeper)
            });
            match started {
                Ok(house) => handle.threads.lock().push(house),
                Err(error) => {
                    return Err(recovery::open_error(&shared.storage.location(), "start a thread", error));
                }
            }
        }
        Ok(Self { handle: Arc::new(handle) })
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Appends events and state records as one atomic batch; waits while the commit queue is full (in a log without threads it
    /// answers [`AppendError::QueueFull`] then). It returns when everything has its seq and its place; it is durable when the
    /// ticket is.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was appended.
    pub fn append(&self, append: &Append<'_>, outcomes: &mut Outcomes) -> Result<Ticket, AppendError> {
        self.shared().append(append, outcomes, true)
    }

    /// Like [`append`](Self::append), but answers [`AppendError::QueueFull`] instead of waiting.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was appended.
    pub fn try_append(&self, append: &Append<'_>, outcomes: &mut Outcomes) -> Result<Ticket, AppendError> {
        self.shared().append(append, outcomes, false)
    }

    /// Waits until an append is durable.
    ///
    /// # Errors
    /// [`Unavailable`] when writing stopped before: the fate of the append is unknown until the log is opened again.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Unavailable> {
        self.shared().wait(ticket)
    }

    /// The newest durable batch: every ticket up to it is durable.
    pub fn durable_batch(&self) -> u64 {
        self.shared().durable.get()
    }

    /// Whether an append is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.durable_batch() >= ticket.batch
    }

    /// Which commit times are over. `closing` closes the time that it names, also where the clock is behind it: that is for the
    /// time of an event that is there, or of now.
    pub fn commit_times(&self, closing: i64) -> crate::CommitTimes {
        self.shared().commit_times(closing)
    }

    /// Why writing stopped, if it did.
    pub fn unavailable(&self) -> Option<Unavailable> {
        self.shared().poison.check().err()
    }

    /// The id of a topic, which is made if it is not there.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn ensure_topic(&self, name: &str) -> Result<TopicId, AppendError> {
        self.shared().ensure_topic(name, true)
    }

    /// Like [`ensure_topic`](Self::ensure_topic), but answers [`AppendError::QueueFull`] instead of waiting.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn try_ensure_topic(&self, name: &str) -> Result<TopicId, AppendError> {
        self.shared().ensure_topic(name, false)
    }

    /// The id of a topic that is there.
    pub fn topic(&self, name: &str) -> Option<TopicId> {
        self.shared().topic_id(name)
    }

    /// Deletes a topic. A topic made later under the same name is another one and starts at seq 1.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn delete_topic(&self, topic: TopicId) -> Result<Ticket, AppendError> {
        self.shared().delete_topic(topic, &[], true)
    }

    /// Like [`delete_topic`](Self::delete_topic), but answers [`AppendError::QueueFull`] instead of waiting. The state records
    /// become durable with the deletion or not at all.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing was deleted.
    pub fn try_delete_topic(&self, topic: TopicId, states: &[NewState<'_>]) -> Result<Ticket, AppendError> {
        self.shared().delete_topic(topic, states, false)
    }

    /// All topics that are durable, in the order they were made.
    pub fn topics(&self) -> Vec<TopicInfo> {
        let view = self.shared().view.read();
        let topics = view.topics.iter().enumerate().filter_map(|(id, topic)| {
            let topic = topic.as_ref().filter(|topic| !topic.is_deleted)?;
            Some(TopicInfo {
                id: TopicId(id as u32),
                name: Arc::clone(&topic.name),
                last_seq: topic.last_seq,
            })
        });
        topics.collect()
    }

    /// The newest durable seq of a topic; zero when it has none, or there is no such topic.
    pub fn last_seq(&self, topic: TopicId) -> u64 {
        self.shared().view.read().last_seq(topic.0).unwrap_or(0)
    }

    /// The newest seq that a topic has given out, durable or not; zero when it has none, or there is no such topic.
    pub fn appended_seq(&self, topic: TopicId) -> u64 {
        let state = self.shared().append.lock();
        state.topics.get(topic.0 as usize).map_or(0, |topic| topic.next_seq - 1)
    }

    /// The oldest seq of a topic that is kept.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        self.shared().first_seq(topic.0)
    }

    /// Reads events of a topic from a seq on, as many as the limit allows, into `chunk`. An empty chunk whose
    /// [`next_seq`](Chunk::next_seq) is `from` means: nothing there yet.
    ///
    /// # Errors
    /// [`ReadError`] when there is no such topic, or the system refuses to read. Damage is no error: it is left out, named to
    /// the observer, and listed in [`Chunk::missing`].
    pub fn read(
        &self,
        topic: TopicId,
        from: u64,
        limit: ReadLimit,
        chunk: &mut Chunk,
    ) -> Result<(), ReadError> {
        self.shared().read(topic.0, from, limit, chunk)
    }

    /// The first seq whose event has this `ts` or a later one, also when publishers' times are out of order.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        self.shared().first_at_or_after(topic.0, ts, 0)
    }

    /// Like [`first_at_or_after`](Self::first_at_or_after), but only among the seqs from `from_seq` on.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn first_at_or_after_from(
        &self,
        topic: TopicId,
        ts: i64,
        from_seq: u64,
    ) -> Result<Option<u64>, ReadError> {
        self.shared().first_at_or_after(topic.0, ts, from_seq)
    }

    /// The last seq whose event has this `ts` or an earlier one.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn last_at_or_before(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        self.shared().last_at_or_before(topic.0, ts)
    }

    /// The seq of the event with this id, whoever made the id.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn find_id(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        self.shared().find_id(topic.0, id)
    }

    /// Whether this log made the id. Such ids rise with the log.
    pub fn is_own_id(&self, id: EventId) -> bool {
        is_own(self.shared().hash, id)
    }

    /// Whether an event of the topic with this key and a lower seq stands in another segment than the event with this seq.
    /// What stands in the same one is cleaned away with it at the latest.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        self.shared().has_key_before(topic.0, key, seq)
    }

    /// The seq of the newest event with this key.
    ///
    /// # Errors
    /// [`ReadError`] when the system refuses to read.
    pub fn find_key(&self, topic: TopicId, key: &[u8]) -> Result<Option<u64>, ReadError> {
        self.shared().find_key(topic.0, key)
    }

    /// Cleans away what is dead; see [`Liveness`]. It takes as long as it takes, at the pace of the options, and ends soon when
    /// the log is closed. While one call runs, another one does nothing. It may write checkpoints, and then asks the
    /// [`State`] for its snapshot.
    ///
    /// # Errors
    /// [`Unavailable`] when writing stopped, or the log is closed.
    pub fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        self.shared().clean(liveness, options)
    }

    /// Backs the log up into a folder that is new or empty: a copy as of one durable batch, with everything that was durable
    /// when the call began, which opens like any log. Publishers and cleaning go on meanwhile. It writes a checkpoint, and
    /// asks the [`State`] for its snapshot.
    ///
    /// # Errors
    /// See [`BackupError`]; nothing that opens is left behind.
    pub fn backup(
        &self,
        destination: &Path,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        self.shared().backup(destination, progress)
    }

    /// Backs the log up to any storage that is empty.
    ///
    /// # Errors
    /// See [`BackupError`]; nothing that opens is left behind.
    pub fn backup_storage(
        &self,
        destination: Arc<dyn Storage>,
        progress: &mut dyn FnMut(BackupProgress),
    ) -> Result<BackupReport, BackupError> {
        self.shared().backup_to(destination, progress)
    }

    /// What each topic takes, dead events that are not cleaned yet included. One pass over the indexes of all segments.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        self.shared().usage()
    }

    /// What some topics take, in their order, at a cost that does not grow with the number of topics; `None` for one that is not
    /// there, or not durable yet.
    ///
    /// # Errors
    /// [`ReadError`] when an index cannot be read.
    pub fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        self.shared().usage_of(topics)
    }

    /// The lowest seq such that what is kept from it on takes at most about this many bytes. The newest event counts as within
    /// whatever it takes.
    ///
    /// # Errors
    /// [`ReadError`] when there is no such topic, or an index cannot be read.
    pub fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        self.shared().first_within_bytes(topic.0, bytes)
    }

    /// How reading goes: what failed, and how many events cannot be read now.
    pub fn read_health(&self) -> ReadHealth {
        self.shared().read_health()
    }

    /// The unreadable events of every file in which a read has failed. Reads those files, which may block for long on a failing
    /// disk.
    pub fn unreadable(&self) -> Vec<UnreadableEvents> {
        self.shared().list_unreadable()
    }

    /// Removes the events of a topic before this seq from the unreadable ones: retention has cut them off.
    pub fn forget_unreadable_before(&self, topic: TopicId, seq: u64) {
        self.shared().note_read(topic.0, 0, seq);
    }

    /// Reads again what could not be read. It may take long where the disk does; call it from time to time.
    pub fn probe_unreadable(&self) {
        self.shared().probe_unreadable();
    }

    /// Gives up the events that cannot be read now: from here on the bytes that the disk cannot read count as damaged, durably.
    /// Returns what was given up; events whose file cannot be opened at all are not among them.
    ///
    /// # Errors
    /// The system refused to write the list of losses: nothing was given up.
    pub fn accept_losses(&self) -> std::io::Result<Vec<UnreadableEvents>> {
        self.shared().accept_losses()
    }

    /// Figures for metrics and operators.
    pub fn stats(&self) -> LogStats {
        let shared = self.shared();
        let segments = Arc::clone(&shared.view.read().segments);
        let (faults, corrupt_events) = {
            let named = shared.named_faults.lock();
            (named.place_count(), named.event_count())
        };
        LogStats {
            segments: segments.len(),
            bytes: shared.log_bytes(),
            index_memory_bytes: shared.index_memory_bytes(&segments),
            durable_batch: shared.durable.get(),
            faults,
            corrupt_events,
        }
    }

    /// Closes the log: no more appends, what is pending is made durable, a checkpoint is written. Other handles get
    /// [`Unavailable::Closed`] from then on; reading goes on.
    ///
    /// # Errors
    /// [`Unavailable::Poisoned`] when writing had stopped, or stopped now.
    pub fn close(self) -> Result<(), Unavailable> {
        self.handle.close()
    }

    /// Commits one batch, in a log without threads.
    pub fn step_commit(&self) -> Step {
        self.shared().committer.lock().step(self.shared())
    }

    /// Does one piece of background work, in a log without threads.
    pub fn step_housekeeping(&self) -> Step {
        self.shared().housekeeper.lock().step(self.shared())
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Log({})", self.shared().storage.location())
    }
}

/// A panic in a thread of the log must stop the OKs, not leave everyone waiting.
struct PanicGuard<'a> {
    shared: &'a Shared,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.shared.poison("a thread of the log panicked".to_owned());
    }
}
