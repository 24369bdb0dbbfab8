//! The committer: takes the batch in the making, writes it, syncs it, and only then shows it to anyone.
//!
//! There is no timer: while one fdatasync runs, appends gather; when it returns, the next batch goes. [`Committer::step`]
//! does one such round; the thread in `log.rs` only loops it, and the simulation calls it as it likes.

use crate::append::{NewState, TopicId};
use crate::checkpoint::Mark;
use crate::id::{EventId, KeyedHash};
use crate::index::RunIndex;
use crate::layout::SEGMENT_DATA_START;
use crate::log::Shared;
use crate::observer::{Committed, CommittedRun};
use crate::record::{
    self, FLAG_DELETED, HEADER_BYTES, Header, Kind, RUN_BYTES, RunEntry, STATE_RECORDS, TOPIC_RECORDS,
    digest_add,
};
use crate::segment::Segment;
use crate::storage::SyncPoint;
use crate::tail::RunPlace;
use crate::view::TopicChange;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Smaller batches are copied into a buffer of their own size: the large ones are for those who need them.
const LARGE_BATCH_BYTES: usize = 64 * 1024;
/// What the kernel caches and writes at once.
const PAGE_BYTES: u64 = 4096;
/// A run whose buffer grew past this gives it back when many topics share a batch.
const RUN_BUFFER_KEPT_BYTES: usize = 256 * 1024;

/// Records of one topic, or of one other kind, in the batch in the making.
#[derive(Default)]
struct Run {
    topic: u32,
    bytes: Vec<u8>,
    first_seq: u64,
    count: u32,
    digest: u32,
    index: RunIndex,
}

impl Run {
    fn begin(&mut self, topic: u32, first_seq: u64) {
        self.topic = topic;
        self.bytes.clear();
        self.first_seq = first_seq;
        self.count = 0;
        self.digest = 0;
        self.index.clear();
    }

    fn add(&mut self, header: &Header, key: &[u8], body: &[u8], salt: u32) {
        let crc = header.put(salt, &mut self.bytes);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(body);
        self.digest = digest_add(self.digest, crc);
        self.count += 1;
    }

    fn entry(&self) -> RunEntry {
        RunEntry {
            topic: self.topic,
            count: self.count,
            first_seq: self.first_seq,
            length: self.bytes.len() as u32,
            digest: self.digest,
        }
    }
}

/// The batch in the making. Two of them take turns: one gathers while the other is written.
pub(crate) struct Pending {
    batch: u64,
    topic_records: Run,
    runs: Vec<Run>,
    /// How many of `runs` are in use; the others keep their buffers for later.
    used_runs: usize,
    state_records: Run,
    bytes: usize,
    events: usize,
    roll_to: Option<Arc<Segment>>,
    pub(crate) commit_ms: i64,
    pub(crate) last_own_id: EventId,
    topic_changes: Vec<TopicChange>,
}

impl Pending {
    pub(crate) fn new(batch: u64) -> Self {
        let mut pending = Self {
            batch,
            topic_records: Run::default(),
            runs: Vec::new(),
            used_runs: 0,
            state_records: Run::default(),
            bytes: 0,
            events: 0,
            roll_to: None,
            commit_ms: 0,
            last_own_id: EventId::default(),
            topic_changes: Vec::new(),
        };
        pending.reset(batch);
        pending
    }

    fn reset(&mut self, batch: u64) {
        self.batch = batch;
        self.topic_records.begin(TOPIC_RECORDS, 0);
        self.state_records.begin(STATE_RECORDS, 0);
        if self.used_runs > 8 {
            for run in &mut self.runs[..self.used_runs] {
                if run.bytes.capacity() > RUN_BUFFER_KEPT_BYTES {
                    run.bytes = Vec::new();
                }
            }
        }
        self.used_runs = 0;
        self.bytes = 0;
        self.events = 0;
        self.roll_to = None;
        self.last_own_id = EventId::default();
        self.topic_changes.clear();
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    /// Bytes of frames and run table entries so far, without the COMMIT's header.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The batch starts a new segment; answers one that it was to start before.
    pub(crate) fn roll_to(&mut self, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        debug_assert!(self.is_empty());
        self.roll_to.replace(segment)
    }

    pub(crate) fn begin_run(&mut self, topic: u32, first_seq: u64) -> usize {
        if self.used_runs == self.runs.len() {
            self.runs.push(Run::default());
        }
        self.runs[self.used_runs].begin(topic, first_seq);
        self.used_runs += 1;
        self.bytes += RUN_BYTES;
        self.used_runs - 1
    }

    pub(crate) fn add_event(
        &mut self,
        run: usize,
        header: &Header,
        key: &[u8],
        body: &[u8],
        salt: u32,
        hash: KeyedHash,
    ) {
        let run = &mut self.runs[run];
        run.index.add(header, run.bytes.len() as u32, key, hash);
        run.add(header, key, body, salt);
        self.bytes += header.frame_length();
        self.events += 1;
    }

    pub(crate) fn add_state(&mut self, state: &NewState<'_>, commit_ms: i64, salt: u32) {
        let header = plain_header(Kind::State, 0, state.tag, state.body, commit_ms);
        if self.state_records.count == 0 {
            self.bytes += RUN_BYTES;
        }
        self.state_records.add(&header, &[], state.body, salt);
        self.bytes += header.frame_length();
    }

    pub(crate) fn add_topic(&mut self, topic: u32, name: &str, flags: u8, commit_ms: i64, salt: u32) {
        let header = plain_header(Kind::Topic, flags, topic, name.as_bytes(), commit_ms);
        if self.topic_records.count == 0 {
            self.bytes += RUN_BYTES;
        }
        self.topic_records.add(&header, &[], name.as_bytes(), salt);
        self.bytes += header.frame_length();
        self.topic_changes.push(if flags & FLAG_DELETED == 0 {
            TopicChange::Made { topic, name: name.into() }
        } else {
            TopicChange::Deleted { topic }
        });
    }

    fn event_runs(&self) -> &[Run] {
        &self.runs[..self.used_runs]
    }

    /// All runs in the order they are written.
    fn all_runs(&self) -> impl Iterator<Item = &Run> {
        let topics = Some(&self.topic_records).into_iter();
        topics.chain(self.event_runs()).chain(Some(&self.state_records)).filter(|run| run.count > 0)
    }
}

fn plain_header(kind: Kind, flags: u8, topic: u32, body: &[u8], commit_ms: i64) -> Header {
    Header {
        kind,
        flags,
        key_length: 0,
        body_length: body.len() as u32,
        body_crc: record::body_crc(&[], body),
        topic,
        seq: 0,
        commit_ms,
        ts: 0,
        id: EventId::default(),
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// Something was done; there may be more.
    Worked,
    /// Writing has stopped for good.
    Stopped,
}

/// A batch that starts a new segment.
struct Rolled {
    /// The segment before it and its length.
    old: Option<(Arc<Segment>, u64)>,
    next: Arc<Segment>,
}

/// Writes batches. There is one, and it alone writes into segments.
pub(crate) struct Committer {
    segment: Option<Arc<Segment>>,
    /// Where the next batch goes in the segment.
    position: u64,
    /// The chain value of the last COMMIT.
    chain: u32,
    /// The other batch: empty, with buffers to use.
    spare: Pending,
    /// The run table of the batch that is written, as bytes and as places.
    table: Vec<u8>,
    places: Vec<RunPlace>,
    /// The runs of events among them, for the observer.
    committed_runs: Vec<CommittedRun>,
}

impl Committer {
    pub(crate) fn new(segment: Option<Arc<Segment>>, mark: Mark) -> Self {
        Self {
            segment,
            position: mark.position,
            chain: mark.chain,
            spare: Pending::new(0),
            table: Vec::new(),
            places: Vec::new(),
            committed_runs: Vec::new(),
        }
    }

    /// Takes what is pending and makes it durable: one write, one fdatasync, one wake-up.
    pub(crate) fn step(&mut self, shared: &Shared) -> Step {
        if shared.poison.get().is_some() {
            return Step::Stopped;
        }
        if !self.take(shared) {
            return Step::Idle;
        }
        match self.write(shared) {
            Ok(duration) => {
                shared.observer().committed(&Committed {
                    batch: self.spare.batch,
                    events: self.spare.events,
                    bytes: self.spare.bytes + HEADER_BYTES,
                    runs: &self.committed_runs,
                    duration,
                });
                Step::Worked
            }
            Err(error) => {
                let file = self.segment.as_ref().map_or_else(String::new, |segment| segment.name());
                shared.poison(format!("writing {file}: {error}"));
                Step::Stopped
            }
        }
    }

    /// Swaps the batch in the making against the empty one.
    fn take(&mut self, shared: &Shared) -> bool {
        let mut state = shared.append.lock();
        if state.pending.is_empty() {
            return false;
        }
        self.spare.reset(state.pending.batch + 1);
        std::mem::swap(&mut self.spare, &mut state.pending);
        state.place.remaining -= (self.spare.bytes + HEADER_BYTES) as u64;
        drop(state);
        shared.notify_room();
        true
    }

    /// Answers what the write and the sync took.
    fn write(&mut self, shared: &Shared) -> io::Result<Duration> {
        let rolled = match self.spare.roll_to.take() {
            None => None,
            Some(next) => {
                let old = self.segment.replace(Arc::clone(&next)).map(|segment| (segment, self.position));
                self.position = SEGMENT_DATA_START;
                Some(Rolled { old, next })
            }
        };
        let segment = Arc::clone(self.segment.as_ref().expect("a batch has a place before it is taken"));

        self.table.clear();
        self.places.clear();
        let mut start = 0;
        for run in self.spare.all_runs() {
            run.entry().put(&mut self.table);
            let end = start + run.bytes.len();
            let last_seq = (run.first_seq + u64::from(run.count)).saturating_sub(1);
            self.places.push(RunPlace { topic: run.topic, first_seq: run.first_seq, last_seq, start, end });
            start = end;
        }
        let mut block = self.gather(shared);
        let content = block.len();
        let pending = &self.spare;
        let chain = record::put_commit(
            &mut block,
            segment.id.salt,
            pending.batch,
            pending.commit_ms,
            content,
            self.chain,
            &self.table,
        );
        let file = segment.file()?;
        let started = Instant::now();
        // Up to the end of a page: a part of a page that is not in the cache would have to be read first.
        let length = block.len();
        let end = (self.position + length as u64).next_multiple_of(PAGE_BYTES).min(segment.id.capacity);
        block.resize((end - self.position) as usize, 0);
        file.write_at(&block, self.position)?;
        block.truncate(length);
        // The acknowledgement of every record in the batch waits for this one.
        file.sync(SyncPoint::LogData)?;
        let duration = started.elapsed();

        let start = self.position;
        self.chain = chain;
        self.position += block.len() as u64;
        let mark = Mark { segment: segment.id.number, position: self.position, batch: pending.batch, chain };
        self.publish(shared, rolled, block, start, mark);
        Ok(duration)
    }

    /// The frames of all runs in one buffer, with room for the COMMIT. A lone large run lends its own.
    fn gather(&mut self, shared: &Shared) -> Vec<u8> {
        let pending = &mut self.spare;
        let length = pending.bytes + HEADER_BYTES;
        let is_lone = pending.used_runs == 1 && self.places.len() == 1;
        if length < LARGE_BATCH_BYTES {
            let mut block = Vec::with_capacity(length + PAGE_BYTES as usize);
            pending.all_runs().for_each(|run| block.extend_from_slice(&run.bytes));
            return block;
        }
        let mut block = shared.batch_pool.take();
        if is_lone {
            std::mem::swap(&mut block, &mut pending.runs[0].bytes);
        } else {
            block.reserve(length + PAGE_BYTES as usize);
            pending.all_runs().for_each(|run| block.extend_from_slice(&run.bytes));
        }
        block
    }

    /// Shows the batch, which is durable now, to readers and to those who wait for it.
    fn publish(&mut self, shared: &Shared, rolled: Option<Rolled>, block: Vec<u8>, start: u64, mark: Mark) {
        let has_rolled = rolled.is_some();
        let pending = &self.spare;
        let block =
            if block.len() < LARGE_BATCH_BYTES { Bytes::from(block) } else { shared.batch_pool.share(block) };
        let mut view = shared.view.write();
        if let Some(Rolled { old, next }) = rolled {
            view.roll(old, next);
        }
        view.apply_topic_changes(&pending.topic_changes);
        let event_places = || self.places.iter().copied().filter(RunPlace::is_events);
        for (run, place) in pending.event_runs().iter().zip(event_places()) {
            view.active_index.add_run(run.topic, &run.index, start as u32 + place.start as u32);
            view.set_last_seq(place.topic, place.last_seq);
        }
        view.tail.push(&block, event_places());
        self.committed_runs.clear();
        self.committed_runs.extend(event_places().map(|place| CommittedRun {
            topic: TopicId(place.topic),
            first_seq: place.first_seq,
            last_seq: place.last_seq,
        }));
        if let Some(place) = self.places.last().filter(|place| place.topic == STATE_RECORDS) {
            // A copy: it waits for the next checkpoint, and must not keep the whole batch in memory until then.
            view.state_records.push(Bytes::copy_from_slice(&block[place.start..place.end]));
        }
        if pending.last_own_id != EventId::default() {
            view.last_own_id = pending.last_own_id;
        }
        view.last_commit_ms = pending.commit_ms;
        view.mark = mark;
        view.since_checkpoint += block.len() as u64;
        let checkpoint_due = view.since_checkpoint >= shared.options.checkpoint_bytes;
        drop(view);
        shared.durable.advance(pending.batch);
        if shared.wants_durable.load(Ordering::SeqCst) && shared.wants_durable.swap(false, Ordering::SeqCst) {
            shared.notify_room();
        }
        if has_rolled || checkpoint_due {
            shared.wake_housekeeper();
        }
    }
}
