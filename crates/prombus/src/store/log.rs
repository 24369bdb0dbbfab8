//! The store on disk: the log of `prombus-log`, with group records as its state.

use super::groups::{GroupState, SharedGroups};
use super::{
    AppendBatch, CommitTimes, EventHead, Scanned, Scanner, StateRecord, Store, StoreObserver, StoredEvent,
    StoredTopic, Visit,
};
use crate::clock::{Clock, LogClock};
use crate::error::{BackupError, OpenError, ReadError, StoreError, Unavailable};
use crate::metrics::{COMMIT_EVENTS_BOUNDS, COMMIT_MS_BOUNDS, Histogram, StoreFigures};
use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use prombus_log::BackupError as LogBackupError;
use prombus_log::storage::Storage;
use prombus_log::{
    Append, AppendError, Chunk, CleanOptions, CleanReport, Committed, EventId, Liveness, Log, LogStats,
    MissingReason, NewState, Notice, Observer, Options, Outcome, Outcomes, ReadLimit, TopicId, TopicUsage,
    UnreadableEvents,
};
use prombus_protocol::Topic;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a reader reads at once.
const READ_BYTES: usize = 1 << 20;

/// Lists with more memory than this are not kept.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// An open that fails because a file is unreadable is retried this often, after 100 ms, doubling each time: about 6 s in all.
const OPEN_RETRIES: u32 = 6;

/// Settings of the log.
#[derive(Clone, Default)]
pub struct LogStoreOptions {
    /// The log's own.
    pub log: Options,
}

/// Events and groups in a folder.
pub struct LogStore {
    log: Log,
    groups: SharedGroups,
    listener: Arc<Listener>,
    /// Lists that appends use, kept for the next.
    scratch: Mutex<Vec<Scratch>>,
    has_threads: bool,
    segment_bytes: u64,
    firsts: Arc<Firsts>,
}

/// Where topics begin of which something was cut off.
#[derive(Default)]
struct Firsts {
    by_topic: RwLock<HashMap<TopicId, u64, RandomState>>,
    /// So that nobody needs the lock when nothing was ever cut.
    is_any: AtomicBool,
}

impl Firsts {
    fn get(&self, topic: TopicId) -> u64 {
        if !self.is_any.load(Ordering::Acquire) {
            return 0;
        }
        self.by_topic.read().get(&topic).copied().unwrap_or(0)
    }

    fn raise(&self, firsts: impl IntoIterator<Item = (TopicId, u64)>) {
        let mut by_topic = self.by_topic.write();
        for (topic, seq) in firsts {
            let first = by_topic.entry(topic).or_default();
            *first = seq.max(*first);
            self.is_any.store(true, Ordering::Release);
        }
    }
}

#[derive(Default)]
struct Scratch {
    outcomes: Outcomes,
    records: Vec<u8>,
    ends: Vec<(u32, usize)>,
}

thread_local! {
    static IS_STORE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is one that closing a store waits for.
pub(crate) fn is_store_thread() -> bool {
    IS_STORE_THREAD.get()
}

/// Passes on what the log tells, once somebody listens.
struct Listener {
    observer: OnceLock<Arc<dyn StoreObserver>>,
    commit_duration_ms: Histogram,
    commit_batch_events: Histogram,
    is_full: AtomicBool,
    /// The newest batch that the observer has been told about.
    told_batch: AtomicU64,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            observer: OnceLock::new(),
            commit_duration_ms: Histogram::new(COMMIT_MS_BOUNDS),
            commit_batch_events: Histogram::new(COMMIT_EVENTS_BOUNDS),
            is_full: AtomicBool::new(false),
            told_batch: AtomicU64::new(0),
        }
    }
}

impl Listener {
    fn tell(&self, what: impl FnOnce(&dyn StoreObserver)) {
        if let Some(observer) = self.observer.get() {
            let was = IS_STORE_THREAD.replace(true);
            what(&**observer);
            IS_STORE_THREAD.set(was);
        }
    }
}

impl Observer for Listener {
    fn committed(&self, committed: &Committed<'_>) {
        self.commit_duration_ms.observe(committed.duration.as_secs_f64() * 1000.0);
        if committed.events > 0 {
            self.commit_batch_events.observe(committed.events as f64);
        }
        let mut newest = committed.runs.iter().map(|run| (run.topic, run.last_seq));
        self.tell(|observer| observer.committed(committed.batch, &mut newest));
        self.told_batch.store(committed.batch, Ordering::Release);
    }

    fn room(&self) {
        self.tell(StoreObserver::room);
    }

    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::StorageFull { .. } => self.is_full.store(true, Ordering::Relaxed),
            Notice::StorageFreed => self.is_full.store(false, Ordering::Relaxed),
            _ => {}
        }
        match notice {
            Notice::Damaged(_)
            | Notice::Unreadable { .. }
            | Notice::StorageFull { .. }
            | Notice::CheckpointFailed { .. } => {
                tracing::error!("{notice}");
            }
            Notice::Poisoned { reason } => {
                tracing::error!("{notice}");
                self.tell(|observer| observer.unavailable(Unavailable::Poisoned(reason.clone())));
            }
            Notice::TornTail { .. } => tracing::warn!("{notice}"),
            _ => tracing::info!("{notice}"),
        }
    }
}

impl LogStore {
    /// Opens the log in a folder, or makes one there.
    ///
    /// # Errors
    /// See [`OpenError`]; the folder is left as it was.
    pub fn open(folder: &Path, options: LogStoreOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let mut retry = 0;
        loop {
            let opened = Self::open_with(options.clone(), Arc::clone(&clock), |options, groups| {
                Log::open_with_state(folder, options, groups)
            });
            match opened {
                Err(OpenError::Log(error @ prombus_log::OpenError::Unreadable { .. }))
                    if retry < OPEN_RETRIES =>
                {
                    let wait_ms = 100 << retry;
                    tracing::warn!("{}; retrying in {wait_ms} ms", with_causes(&error));
                    std::thread::sleep(Duration::from_millis(wait_ms));
                    retry += 1;
                }
                opened => return opened,
            }
        }
    }

    /// Opens the log on any storage, for tests that own the disk.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_storage(
        storage: Arc<dyn Storage>,
        options: LogStoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::open_with(options, clock, |options, groups| Log::open_storage(storage, options, groups))
    }

    fn open_with(
        options: LogStoreOptions,
        clock: Arc<dyn Clock>,
        open: impl FnOnce(Options, Box<dyn prombus_log::State>) -> Result<Log, prombus_log::OpenError>,
    ) -> Result<Self, OpenError> {
        let listener = Arc::new(Listener::default());
        let groups = SharedGroups::default();
        let mut log_options = options.log;
        let (has_threads, segment_bytes) = (log_options.threads, log_options.segment_bytes);
        log_options.clock = Arc::new(LogClock(clock));
        log_options.observer = Arc::clone(&listener) as Arc<dyn Observer>;
        let log = open(log_options, Box::new(groups.clone()))?;
        groups.all().map_err(OpenError::Groups)?;
        listener.told_batch.fetch_max(log.durable_batch(), Ordering::AcqRel);
        let firsts = Arc::new(Firsts::default());
        firsts.raise(groups.firsts());
        Ok(Self { log, groups, listener, scratch: Mutex::default(), has_threads, segment_bytes, firsts })
    }

    /// The log itself, for figures, cleaning and simulated steps.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Figures of the log.
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }
}

impl From<AppendError> for StoreError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::QueueFull => Self::Busy,
            AppendError::StorageFull => Self::Full,
            AppendError::TooLarge { .. } | AppendError::KeyTooLong { .. } => {
                Self::TooLarge(error.to_string())
            }
            AppendError::UnknownTopic(number) => Self::UnknownTopic(number),
            AppendError::Unavailable(reason) => Self::Unavailable(reason.into()),
            AppendError::Lookup(_) => Self::Lookup(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl From<prombus_log::ReadError> for ReadError {
    fn from(error: prombus_log::ReadError) -> Self {
        match error {
            prombus_log::ReadError::UnknownTopic(number) => Self::UnknownTopic(format!("number {number}")),
            prombus_log::ReadError::Unreadable { first_seq, last_seq, .. } => {
                Self::Unreadable { first_seq, last_seq, reason: with_causes(&error) }
            }
            other => Self::Io(with_causes(&other)),
        }
    }
}

impl Store for LogStore {
    fn observe(&self, observer: Arc<dyn StoreObserver>) {
        let is_first = self.listener.observer.set(observer).is_ok();
        debug_assert!(is_first, "a store has one observer");
    }

    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Outcome>) -> Result<u64, StoreError> {
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        scratch.records.clear();
        scratch.ends.clear();
        for record in batch.records {
            record.put(&mut scratch.records);
            scratch.ends.push((record.tag(), scratch.records.len()));
        }
        let mut start = 0;
        let states: Vec<NewState<'_>> = scratch
            .ends
            .iter()
            .map(|&(tag, end)| {
                let body = &scratch.records[start..end];
                start = end;
                NewState { tag, body }
            })
            .collect();
        let append = Append { events: batch.events, states: &states, use_reserve: batch.use_reserve };
        let appended = self.log.try_append(&append, &mut scratch.outcomes);
        drop(states);
        if appended.is_ok() {
            outcomes.extend_from_slice(&scratch.outcomes);
        }
        if scratch.records.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch.lock().push(scratch);
        }
        Ok(appended?.batch())
    }

    fn durable_batch(&self) -> u64 {
        self.log.durable_batch()
    }

    fn commit_times(&self, closing: i64) -> CommitTimes {
        let times = self.log.commit_times(closing);
        let is_told = self.listener.told_batch.load(Ordering::Acquire) >= times.durable_batch;
        CommitTimes { complete_ms: if is_told { times.complete_ms } else { i64::MIN }, ..times }
    }

    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        Ok(self.log.try_ensure_topic(name.as_str())?)
    }

    fn topics(&self) -> Vec<StoredTopic> {
        let topics = self.log.topics().into_iter().filter_map(|topic| {
            // A log that was written by other hands may hold other names; nobody can ask for them here.
            let name = Topic::new(&*topic.name).ok()?;
            Some(StoredTopic { id: topic.id, name, last_seq: topic.last_seq })
        });
        topics.collect()
    }

    fn last_seq(&self, topic: TopicId) -> u64 {
        self.log.last_seq(topic)
    }

    fn appended_seq(&self, topic: TopicId) -> u64 {
        self.log.appended_seq(topic)
    }

    fn first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        let cut_at = self.firsts.get(topic);
        let first = self.log.first_seq(topic)?;
        if first.is_none_or(|first| first >= cut_at) {
            return Ok(first);
        }
        // Below the cut there is still something that nobody is served.
        match self.head_at_or_after(topic, cut_at) {
            // It is there, and cannot be read.
            Err(ReadError::Unreadable { first_seq, .. }) => Ok(Some(first_seq)),
            head => Ok(head?.map(|head| head.seq)),
        }
    }

    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        let mut chunk = Chunk::default();
        let mut seq = seq.max(self.firsts.get(topic));
        loop {
            self.log.read(topic, seq, ReadLimit { events: 1, bytes: 1 }, &mut chunk)?;
            if let Some(event) = chunk.events().next() {
                return Ok(Some(EventHead::from(&event)));
            }
            // Nothing but gaps and damage so far.
            if chunk.next_seq() <= seq {
                return Ok(None);
            }
            seq = chunk.next_seq();
        }
    }

    fn scanner(&self) -> Box<dyn Scanner> {
        let firsts = Arc::clone(&self.firsts);
        Box::new(LogScanner {
            log: self.log.clone(),
            firsts,
            topic: None,
            chunk: Chunk::default(),
            at: 0,
            read_bytes: READ_BYTES,
        })
    }

    fn find(&self, topic: TopicId, id: EventId) -> Result<Option<u64>, ReadError> {
        Ok(self.log.find_id(topic, id)?)
    }

    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Result<Option<u64>, ReadError> {
        Ok(self.log.first_at_or_after_from(topic, ts, self.firsts.get(topic))?)
    }

    fn is_own_id(&self, id: EventId) -> bool {
        self.log.is_own_id(id)
    }

    fn has_key_before(&self, topic: TopicId, key: &[u8], seq: u64) -> Result<bool, ReadError> {
        Ok(self.log.has_key_before(topic, key, seq)?)
    }

    fn cut(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        let records = [StateRecord::Cut { firsts: firsts.to_vec() }];
        self.append(&AppendBatch { records: &records, use_reserve: true, events: &[] }, &mut Vec::new())?;
        self.firsts.raise(firsts.iter().copied());
        for &(topic, first_seq) in firsts {
            self.log.forget_unreadable_before(topic, first_seq);
        }
        Ok(())
    }

    fn cut_at(&self, topic: TopicId) -> u64 {
        self.firsts.get(topic)
    }

    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Result<u64, ReadError> {
        Ok(self.log.first_within_bytes(topic, bytes)?)
    }

    fn usage(&self) -> Result<Vec<TopicUsage>, ReadError> {
        Ok(self.log.usage()?)
    }

    fn usage_of(&self, topics: &[TopicId]) -> Result<Vec<Option<TopicUsage>>, ReadError> {
        Ok(self.log.usage_of(topics)?)
    }

    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        let record = StateRecord::TopicDeleted { topic, name: name.to_string() };
        let mut body = Vec::new();
        record.put(&mut body);
        Ok(self.log.try_delete_topic(topic, &[NewState { tag: record.tag(), body: &body }])?.batch())
    }

    fn clean(&self, liveness: &dyn Liveness, options: &CleanOptions) -> Result<CleanReport, Unavailable> {
        Ok(self.log.clean(liveness, options)?)
    }

    fn worth_cleaning_bytes(&self) -> u64 {
        self.segment_bytes / 2
    }

    fn topic_settings(&self) -> Vec<(String, String)> {
        self.groups.settings()
    }

    fn kept(&self) -> Vec<(String, Vec<u8>)> {
        self.groups.kept()
    }

    fn backup(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), BackupError> {
        let copied = self.log.backup(folder, &mut |it| progress(it.bytes_done, it.bytes_total));
        copied.map(|_| ()).map_err(|error| {
            let text = with_causes(&error);
            match error {
                LogBackupError::NotEmpty { .. }
                | LogBackupError::Inside { .. }
                | LogBackupError::Folder { .. } => BackupError::Folder(text),
                LogBackupError::Full { .. } => BackupError::Full(text),
                _ => BackupError::Failed(text),
            }
        })
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn groups(&self) -> Vec<GroupState> {
        self.groups.all().unwrap_or_default()
    }

    fn wait_for_room(&self) -> bool {
        if !self.has_threads {
            // Room comes from a commit, or from a segment that is made.
            let worked = prombus_log::Step::Worked;
            return self.log.step_commit() == worked || self.log.step_housekeeping() == worked;
        }
        std::thread::sleep(Duration::from_millis(1));
        self.log.unavailable().is_none()
    }

    fn is_full(&self) -> bool {
        self.listener.is_full.load(Ordering::Relaxed)
    }

    fn figures(&self) -> StoreFigures {
        let stats = self.log.stats();
        let reads = self.log.read_health();
        StoreFigures {
            commit_duration_ms: self.listener.commit_duration_ms.figures(),
            commit_batch_events: self.listener.commit_batch_events.figures(),
            is_full: self.is_full(),
            bytes: stats.bytes,
            faults: stats.faults,
            read_errors: reads.errors,
            events_unreadable: reads.events_unreadable,
            read_problem: reads.problem,
            corrupt_events: stats.corrupt_events,
        }
    }

    fn probe_unreadable(&self) {
        self.log.probe_unreadable();
    }

    fn unreadable(&self) -> Vec<UnreadableEvents> {
        self.log.unreadable()
    }

    fn accept_losses(&self) -> Result<Vec<UnreadableEvents>, StoreError> {
        self.log
            .accept_losses()
            .map_err(|error| StoreError::Other(format!("writing the list of losses: {error}")))
    }

    fn close(&self) -> Result<(), Unavailable> {
        Ok(self.log.clone().close()?)
    }
}

/// Reads up to a megabyte at a time and hands it out piece by piece.
struct LogScanner {
    log: Log,
    firsts: Arc<Firsts>,
    topic: Option<TopicId>,
    chunk: Chunk,
    /// Events of the chunk before this one were handed out.
    at: usize,
    /// Bytes per read.
    read_bytes: usize,
}

impl LogScanner {
    /// Whether the chunk has what comes at this place; goes there if so.
    fn goes_on(&mut self, topic: TopicId, from: u64) -> bool {
        if self.topic != Some(topic) || self.at >= self.chunk.len() || from >= self.chunk.next_seq() {
            return false;
        }
        while self.at < self.chunk.len() && self.chunk.event(self.at).seq < from {
            self.at += 1;
        }
        let Some(at) = Some(self.at).filter(|&at| at < self.chunk.len()) else { return false };
        // Before its first event a chunk knows only what it says is missing.
        let is_missing =
            |seq| self.chunk.missing().iter().any(|gap| (gap.first_seq..=gap.last_seq).contains(&seq));
        self.chunk.event(at).seq == from
            || (at > 0 && self.chunk.event(at - 1).seq < from)
            || (at == 0 && is_missing(from))
    }

    fn missing(&self, from: u64, to: u64, scanned: &mut Scanned) {
        for gap in self.chunk.missing() {
            let (first, last) = (gap.first_seq.max(from), gap.last_seq.min(to));
            if first <= last {
                match gap.reason {
                    MissingReason::Cleaned => scanned.cleaned += last - first + 1,
                    MissingReason::Corrupt => scanned.corrupt += last - first + 1,
                }
            }
        }
    }
}

impl Scanner for LogScanner {
    fn scan(
        &mut self,
        topic: TopicId,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(&StoredEvent<'_>) -> Visit,
    ) -> Result<Scanned, ReadError> {
        let first = self.firsts.get(topic);
        if from < first && from <= to {
            let last_cut = to.min(first - 1);
            let cut = last_cut - from + 1;
            if last_cut == to {
                return Ok(Scanned { next_seq: to + 1, cleaned: cut, corrupt: 0 });
            }
            let mut scanned = self.scan(topic, first, to, visit)?;
            scanned.cleaned += cut;
            return Ok(scanned);
        }
        if !self.goes_on(topic, from) {
            self.topic = None;
            self.at = 0;
            // A lone event is not worth a megabyte.
            let bytes = if from == to { 1 } else { self.read_bytes };
            let events = if from == to { 1 } else { usize::MAX };
            self.log.read(topic, from, ReadLimit { events, bytes }, &mut self.chunk)?;
            self.topic = Some(topic);
        }
        let mut next_seq = from;
        while self.at < self.chunk.len() {
            let event = self.chunk.event(self.at);
            if event.seq > to {
                break;
            }
            if visit(&event) == Visit::Stop {
                let mut scanned = Scanned { next_seq: event.seq, ..Scanned::default() };
                self.missing(from, event.seq, &mut scanned);
                return Ok(scanned);
            }
            next_seq = event.seq + 1;
            self.at += 1;
        }
        if self.at == self.chunk.len() {
            next_seq = self.chunk.next_seq().min(to + 1).max(next_seq);
        } else {
            // The next event lies behind what was asked for; what is before it and not there is missing.
            next_seq = next_seq.max(self.chunk.event(self.at).seq.min(to + 1));
        }
        let mut scanned = Scanned { next_seq, ..Scanned::default() };
        if next_seq > from {
            self.missing(from, next_seq - 1, &mut scanned);
        }
        if self.at == self.chunk.len() {
            // Batches in memory are not kept alive for a reader that has seen them.
            self.rest();
        }
        Ok(scanned)
    }

    fn read_ahead(&mut self, bytes: usize) {
        self.read_bytes = bytes.clamp(1, READ_BYTES);
    }

    fn rest(&mut self) {
        self.topic = None;
        self.at = 0;
        self.chunk.forget();
    }
}
