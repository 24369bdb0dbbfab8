//! The pending batch. It collects records while the previous batch is being written.

use crate::event_id::EventId;
use crate::index::RunIndex;
use crate::keyed_hash::KeyedHash;
use crate::record::{
    self, FLAG_DELETED, Header, Kind, RUN_BYTES, RunEntry, STATE_RECORDS, TOPIC_RECORDS, digest_add,
};
use crate::segment::Segment;
use crate::topics::TopicChange;
use crate::write::append_request::NewState;
use std::sync::Arc;

/// After a batch with many runs, run buffers larger than this are freed.
const RUN_BUFFER_KEPT_BYTES: usize = 256 * 1024;

/// The events of one topic, or all topic records, or all state records, in the pending batch.
#[derive(Default)]
pub(super) struct PendingRun {
    /// The topic, or [`TOPIC_RECORDS`] or [`STATE_RECORDS`].
    pub(super) topic: u32,
    /// The frames.
    pub(super) bytes: Vec<u8>,
    pub(super) first_seq: u64,
    /// The number of frames.
    pub(super) count: u32,
    /// The checksum over the header crcs of the frames.
    digest: u32,
    pub(super) index: RunIndex,
}

impl PendingRun {
    fn begin(&mut self, topic: u32, first_seq: u64) {
        self.topic = topic;
        self.bytes.clear();
        self.first_seq = first_seq;
        self.count = 0;
        self.digest = 0;
        self.index.clear();
    }

    #[inline]
    fn add(&mut self, header: &Header, key: &[u8], body: &[u8], salt: u32) {
        let crc = header.put(salt, &mut self.bytes);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(body);
        self.digest = digest_add(self.digest, crc);
        self.count += 1;
    }

    #[inline]
    pub(super) fn entry(&self) -> RunEntry {
        RunEntry {
            topic: self.topic,
            count: self.count,
            first_seq: self.first_seq,
            length: self.bytes.len() as u32,
            digest: self.digest,
        }
    }
}

/// A batch that collects records. There are two: one collects while the other is being written.
pub(crate) struct PendingBatch {
    /// The number of the batch.
    batch: u64,
    topic_records: PendingRun,
    /// The runs of events.
    pub(super) runs: Vec<PendingRun>,
    /// The number of `runs` in use. The others only keep their buffers for reuse.
    pub(super) used_runs: usize,
    state_records: PendingRun,
    /// The size of the frames and the run table entries so far, without the COMMIT's header.
    bytes: usize,
    /// The number of events.
    pub(super) events: usize,
    /// The segment that the batch starts; `None` if it continues the current one.
    pub(super) roll_to: Option<Arc<Segment>>,
    /// The commit time of the newest record.
    pub(crate) commit_ms: i64,
    /// The newest server id in the batch; zero if there is none.
    pub(crate) last_server_id: EventId,
    /// The topics that the batch creates and deletes.
    pub(super) topic_changes: Vec<TopicChange>,
}

impl PendingBatch {
    pub(crate) fn new(batch: u64) -> Self {
        let mut pending = Self {
            batch,
            topic_records: PendingRun::default(),
            runs: Vec::new(),
            used_runs: 0,
            state_records: PendingRun::default(),
            bytes: 0,
            events: 0,
            roll_to: None,
            commit_ms: 0,
            last_server_id: EventId::default(),
            topic_changes: Vec::new(),
        };
        pending.reset(batch);
        pending
    }

    pub(super) fn reset(&mut self, batch: u64) {
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
        self.last_server_id = EventId::default();
        self.topic_changes.clear();
    }

    #[inline]
    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    /// Bytes of frames and run table entries so far, without the COMMIT's header.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Makes the batch start a new segment. Returns the segment that was set before, if any.
    pub(crate) fn roll_to(&mut self, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        debug_assert!(self.is_empty());
        self.roll_to.replace(segment)
    }

    #[inline]
    pub(crate) fn begin_run(&mut self, topic: u32, first_seq: u64) -> usize {
        if self.used_runs == self.runs.len() {
            self.runs.push(PendingRun::default());
        }
        self.runs[self.used_runs].begin(topic, first_seq);
        self.used_runs += 1;
        self.bytes += RUN_BYTES;
        self.used_runs - 1
    }

    #[inline]
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
            TopicChange::Created { topic, name: name.into() }
        } else {
            TopicChange::Deleted { topic }
        });
    }

    #[inline]
    pub(super) fn event_runs(&self) -> &[PendingRun] {
        &self.runs[..self.used_runs]
    }

    /// All runs, in the order in which they are written.
    pub(super) fn all_runs(&self) -> impl Iterator<Item = &PendingRun> {
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
