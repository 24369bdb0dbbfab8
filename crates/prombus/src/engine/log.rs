//! The log engine: stores events and group records in the log of `prombus-log`, in a folder or in memory.

mod commit_listener;
mod errors;
mod first_seqs;
mod inline_commits;
mod local_files;
mod scanner;

use super::lookup::Lookup;
use super::may_block::MayBlock;
use super::outcomes::{Appended, Published};
use super::state_fold::StateFold;
use super::{
    AppendBatch, Cleaned, CommitTimes, Engine, EngineCapabilities, EngineObserver, EventHead, EventScanner,
    LocalFiles, RestoredState, StateRecord, StoredTopic, TopicUsage,
};
use crate::clock::{Clock, LogClock};
use crate::error::{OpenError, ReadError, StoreError, Unavailable, with_causes};
use crate::metrics::StoreFigures;
use commit_listener::CommitListener;
use first_seqs::FirstSeqs;
use inline_commits::InlineCommits;
use parking_lot::Mutex;
use prombus_log::storage::RamStorage;
use prombus_log::storage::Storage;
use prombus_log::{
    Append, AppendError, Chunk, CleanOptions, EventId, Liveness, Log, LogStats, NewState, Observer, Options,
    Outcomes, ReadLimit, TopicId,
};
use prombus_protocol::{Topic, Uuid};
use scanner::LogScanner;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Scratch buffers that have grown beyond this size are not kept for reuse.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

/// How often an open is retried if a file is unreadable. The first wait is 100 ms, and each further wait is twice as long: about
/// 6 s in total.
const OPEN_RETRIES: u32 = 6;

/// A segment of a log in memory has an eighth of the size limit of the log, within these bounds.
const MEMORY_SEGMENT_BYTES_MIN: u64 = 72 << 10;
const MEMORY_SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Usually a segment has at least this size, because a batch that a connection has collected must fit into one. If half the limit
/// is less than this, half the limit is the lower bound instead.
const MEMORY_SEGMENT_BYTES_USUAL: u64 = 2 << 20;
/// The space for the small files of a log in memory.
const MEMORY_FILES_BYTES: u64 = 32 << 10;

/// If usage is requested for at least this many topics, and for at least half of all topics, one pass over all topics of all
/// segments is cheaper than a lookup per topic.
const USAGE_OF_ALL_MIN: usize = 1_000;

/// Settings of the log engine.
#[derive(Clone, Default)]
pub struct LogEngineOptions {
    /// The settings of the log.
    pub log: Options,
}

/// Events and group records in a log.
pub struct LogEngine {
    log: Log,
    /// The state of groups and topics, folded from the state records in the log.
    groups: StateFold,
    listener: Arc<CommitListener>,
    /// Buffers for appends, kept for reuse.
    scratch: Mutex<Vec<Scratch>>,
    /// Whether the log has its own threads for commits and maintenance.
    has_threads: bool,
    /// The size of a segment.
    segment_bytes: u64,
    /// Set for a log in memory, which is not durable.
    inline_commits: Option<InlineCommits>,
    /// For topics from which retention removed events: the first seq that is still served.
    firsts: Arc<FirstSeqs>,
}

#[derive(Default)]
struct Scratch {
    outcomes: Outcomes,
    /// The encoded records, one after the other.
    records: Vec<u8>,
    /// For each record: its tag, and where it ends in `records`.
    ends: Vec<(u32, usize)>,
}

impl LogEngine {
    /// Opens the log in a folder, or creates one there.
    ///
    /// # Errors
    /// See [`OpenError`]. After an error, the folder is as it was before.
    pub fn open(folder: &Path, options: LogEngineOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
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

    /// Creates a log in memory that holds at most this many bytes of events. Its content is lost when the process ends.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn in_memory(limit_bytes: u64, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let least_bytes = MEMORY_SEGMENT_BYTES_USUAL.min(limit_bytes / 2).max(MEMORY_SEGMENT_BYTES_MIN);
        let segment_bytes = (limit_bytes / 8).clamp(least_bytes, MEMORY_SEGMENT_BYTES_MAX);
        let reserve_bytes = segment_bytes / 4;
        // The limit is for events. The reserve, indexes, kept ids and checkpoints need additional memory, and so does the segment
        // that compaction writes before it frees others.
        let kept_ids_bytes = limit_bytes / 16;
        let files_bytes = reserve_bytes + limit_bytes / 16 + kept_ids_bytes + MEMORY_FILES_BYTES;
        let prepared_bytes = limit_bytes.saturating_add(files_bytes);
        let log = Options {
            segment_bytes,
            first_segment_bytes: segment_bytes,
            reserve_bytes,
            // All reads are from memory, so a larger cache of recent batches would only be a second copy.
            tail_bytes: 1 << 20,
            kept_ids_bytes,
            threads: false,
            ..Options::default()
        };
        let storage = Arc::new(RamStorage::with_limit(prepared_bytes).and_room_for_rewriting(segment_bytes));
        let mut engine = Self::open_storage(storage, LogEngineOptions { log }, clock)?;
        engine.inline_commits = Some(InlineCommits::default());
        Ok(engine)
    }

    /// Opens the log on any storage, for tests that control the disk.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_storage(
        storage: Arc<dyn Storage>,
        options: LogEngineOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        Self::open_with(options, clock, |options, groups| Log::open_storage(storage, options, groups))
    }

    fn open_with(
        options: LogEngineOptions,
        clock: Arc<dyn Clock>,
        open: impl FnOnce(Options, Box<dyn prombus_log::State>) -> Result<Log, prombus_log::OpenError>,
    ) -> Result<Self, OpenError> {
        let listener = Arc::new(CommitListener::default());
        let groups = StateFold::default();
        let mut log_options = options.log;
        let (has_threads, segment_bytes) = (log_options.threads, log_options.segment_bytes);
        log_options.clock = Arc::new(LogClock(clock));
        log_options.observer = Arc::clone(&listener) as Arc<dyn Observer>;
        let log = open(log_options, Box::new(groups.clone()))?;
        groups.all().map_err(OpenError::Groups)?;
        listener.reported_commit.fetch_max(log.durable_batch(), Ordering::AcqRel);
        let firsts = Arc::new(FirstSeqs::default());
        firsts.raise(groups.firsts());
        Ok(Self {
            log,
            groups,
            listener,
            scratch: Mutex::default(),
            has_threads,
            segment_bytes,
            inline_commits: None,
            firsts,
        })
    }

    /// The log itself, for figures, cleaning and single steps in simulations.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Figures of the log.
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }
}

impl Engine for LogEngine {
    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            is_durable: self.is_durable(),
            has_local_files: self.is_durable(),
            reads_locally: true,
            compaction_bytes_min: self.segment_bytes / 2,
        }
    }

    fn observe(&self, observer: Arc<dyn EngineObserver>) {
        let is_first = self.listener.observer.set(observer).is_ok();
        debug_assert!(is_first, "an engine has one observer");
    }

    fn restored(&self) -> RestoredState {
        self.groups.restored()
    }

    fn append(&self, batch: &AppendBatch<'_>, outcomes: &mut Vec<Published>) -> Result<Appended, StoreError> {
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
        let appended = self.with_room(|| self.log.try_append(&append, &mut scratch.outcomes));
        drop(states);
        if appended.is_ok() {
            outcomes.extend(scratch.outcomes.iter().map(|outcome| Published {
                id: Uuid::from_u128(outcome.id.as_u128()),
                seq: outcome.seq,
                duplicate: outcome.duplicate,
            }));
        }
        if scratch.records.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch.lock().push(scratch);
        }
        let commit = appended?.batch();
        self.run_inline();
        Ok(commit.into())
    }

    fn durable_commit(&self) -> u64 {
        self.log.durable_batch()
    }

    fn commit_times(&self, closing: i64) -> CommitTimes {
        let times = self.log.commit_times(closing);
        let is_reported = self.listener.reported_commit.load(Ordering::Acquire) >= times.durable_batch;
        CommitTimes { complete_ms: if is_reported { times.complete_ms } else { i64::MIN }, ..times }
    }

    fn wait_for_room(&self, _may_block: MayBlock) -> bool {
        if let Some(commits) = &self.inline_commits {
            return commits.run(&self.log);
        }
        if !self.has_threads {
            // A commit makes room in the queue; preparing a segment makes room in the log.
            let worked = prombus_log::Step::Worked;
            return self.log.step_commit() == worked || self.log.step_housekeeping() == worked;
        }
        std::thread::sleep(Duration::from_millis(1));
        self.log.unavailable().is_none()
    }

    fn ensure_topic(&self, name: &Topic) -> Result<TopicId, StoreError> {
        let topic = self.with_room(|| self.log.try_ensure_topic(name.as_str()))?;
        self.run_inline();
        Ok(topic)
    }

    fn delete_topic(&self, topic: TopicId, name: &Topic) -> Result<u64, StoreError> {
        let record = StateRecord::TopicDeleted { topic, name: name.to_string() };
        let mut body = Vec::new();
        record.put(&mut body);
        let states = [NewState { tag: record.tag(), body: &body }];
        let commit = self.with_room(|| self.log.try_delete_topic(topic, &states))?.batch();
        self.run_inline();
        Ok(commit)
    }

    fn retain_from(&self, firsts: &[(TopicId, u64)]) -> Result<(), StoreError> {
        let records = [StateRecord::Cut { firsts: firsts.to_vec() }];
        self.append(&AppendBatch::of_records(&records), &mut Vec::new())?;
        self.firsts.raise(firsts.iter().copied());
        for &(topic, first_seq) in firsts {
            self.log.forget_unreadable_before(topic, first_seq);
        }
        Ok(())
    }

    fn retained_from(&self, topic: TopicId) -> u64 {
        self.firsts.get(topic)
    }

    fn topics(&self) -> Vec<StoredTopic> {
        let topics = self.log.topics().into_iter().filter_map(|topic| {
            // A log that another program wrote may contain topics whose names are not valid here. Such topics cannot be used and
            // are left out.
            let name = Topic::new(&*topic.name).ok()?;
            Some(StoredTopic { id: topic.id, name, last_seq: topic.last_seq })
        });
        topics.collect()
    }

    fn last_seq(&self, topic: TopicId) -> u64 {
        self.log.last_seq(topic)
    }

    fn appended_seq(&self, topic: TopicId) -> Lookup<u64> {
        Lookup::ready(Ok(self.log.appended_seq(topic)))
    }

    fn is_own_id(&self, id: EventId) -> bool {
        self.log.is_own_id(id)
    }

    fn scanner(&self) -> Box<dyn EventScanner> {
        let is_ram = self.inline_commits.is_some();
        Box::new(LogScanner::new(self.log.clone(), Arc::clone(&self.firsts), is_ram))
    }

    fn first_seq(&self, topic: TopicId) -> Lookup<Option<u64>> {
        Lookup::ready(self.read_first_seq(topic))
    }

    fn head_at_or_after(&self, topic: TopicId, seq: u64) -> Lookup<Option<EventHead>> {
        Lookup::ready(self.read_head(topic, seq))
    }

    fn find(&self, topic: TopicId, id: EventId) -> Lookup<Option<u64>> {
        Lookup::ready(self.log.find_id(topic, id).map_err(ReadError::from))
    }

    fn first_at_or_after(&self, topic: TopicId, ts: i64) -> Lookup<Option<u64>> {
        let (log, first) = (self.log.clone(), self.firsts.get(topic));
        Lookup::on_blocking_thread(move || Ok(log.first_at_or_after_from(topic, ts, first)?))
    }

    fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
    ) -> Lookup<Vec<Result<bool, ReadError>>> {
        let log = self.log.clone();
        Lookup::on_blocking_thread(move || {
            let found = keys.iter().map(|(seq, key)| Ok(log.has_key_before(topic, key, *seq)?));
            Ok(found.collect())
        })
    }

    fn first_within_bytes(&self, topic: TopicId, bytes: u64) -> Lookup<u64> {
        let log = self.log.clone();
        Lookup::on_blocking_thread(move || Ok(log.first_within_bytes(topic, bytes)?))
    }

    fn usage(&self, topics: Vec<TopicId>) -> Lookup<Vec<Option<TopicUsage>>> {
        let log = self.log.clone();
        Lookup::on_blocking_thread(move || {
            let figures = |it: &prombus_log::TopicUsage| TopicUsage { events: it.events, bytes: it.bytes };
            if topics.len() < USAGE_OF_ALL_MIN || topics.len() < log.topic_count() / 2 {
                return Ok(log.usage_of(&topics)?.iter().map(|usage| usage.as_ref().map(figures)).collect());
            }
            let all = log.usage()?;
            let all: HashMap<TopicId, TopicUsage> = all.iter().map(|it| (it.topic, figures(it))).collect();
            Ok(topics.iter().map(|topic| all.get(topic).copied()).collect())
        })
    }

    fn clean(
        &self,
        liveness: &dyn Liveness,
        compact: bool,
        _may_block: MayBlock,
    ) -> Result<Cleaned, Unavailable> {
        let mut options = CleanOptions::default();
        options.compact = compact;
        let report = self.log.clean(liveness, &options)?;
        tracing::debug!(?report, "cleaned");
        // Frees the memory of cleaned segments, in case no append follows that would free it.
        self.run_inline();
        Ok(Cleaned {
            events: report.events_removed,
            bytes: report.bytes_removed,
            is_cut_short: report.was_full || report.was_unreadable,
        })
    }

    fn is_full(&self) -> bool {
        self.listener.is_full.load(Ordering::Relaxed)
    }

    fn figures(&self) -> StoreFigures {
        let stats = self.log.stats();
        let reads = self.log.read_health();
        StoreFigures {
            commit_duration_seconds: self.listener.commit_duration_seconds.figures(),
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

    fn local_files(&self) -> Option<&dyn LocalFiles> {
        self.is_durable().then_some(self)
    }

    fn close(&self, _may_block: MayBlock) -> Result<(), Unavailable> {
        Ok(self.log.clone().close()?)
    }
}

impl LogEngine {
    fn is_durable(&self) -> bool {
        self.inline_commits.is_none()
    }

    /// For a log in memory: commits the appends, and runs the maintenance that is due.
    fn run_inline(&self) {
        if let Some(commits) = &self.inline_commits {
            commits.run(&self.log);
        }
    }

    /// If an append to a log in memory finds no room, makes room and tries one more time: such a log has no thread that would
    /// make room.
    fn with_room<T>(&self, mut append: impl FnMut() -> Result<T, AppendError>) -> Result<T, AppendError> {
        match (append(), &self.inline_commits) {
            (Err(AppendError::QueueFull | AppendError::StorageFull), Some(commits)) => {
                commits.make_room(&self.log);
                append()
            }
            (appended, _) => appended,
        }
    }

    fn read_first_seq(&self, topic: TopicId) -> Result<Option<u64>, ReadError> {
        let retained_from = self.firsts.get(topic);
        let first = self.log.first_seq(topic)?;
        if first.is_none_or(|first| first >= retained_from) {
            return Ok(first);
        }
        // Events before `retained_from` may still be stored, but are not served.
        match self.read_head(topic, retained_from) {
            // The event exists, although it cannot be read.
            Err(ReadError::Unreadable { first_seq, .. }) => Ok(Some(first_seq)),
            head => Ok(head?.map(|head| head.seq)),
        }
    }

    fn read_head(&self, topic: TopicId, seq: u64) -> Result<Option<EventHead>, ReadError> {
        let mut chunk = Chunk::default();
        let mut seq = seq.max(self.firsts.get(topic));
        loop {
            self.log.read(topic, seq, ReadLimit { events: 1, bytes: 1 }, &mut chunk)?;
            if let Some(event) = chunk.events().next() {
                return Ok(Some(EventHead::from(&event)));
            }
            // The chunk contains only gaps and damaged events.
            if chunk.next_seq() <= seq {
                return Ok(None);
            }
            seq = chunk.next_seq();
        }
    }
}
