//! The tail cache: the newest committed batches in memory, shared by all readers. A batch is added after its fdatasync
//! and removed when the size limit is exceeded. Readers that still use a removed batch keep its bytes alive.

use crate::number_map::NumberMap;
use crate::read::chunk::ReadLimit;
use crate::record::{STATE_RECORDS, TOPIC_RECORDS};
use bytes::Bytes;
use std::collections::VecDeque;

/// The events of one topic in a committed batch, which are adjacent (a *run*, see docs/disk-format.md).
#[derive(Debug)]
struct TailRun {
    first_seq: u64,
    last_seq: u64,
    /// The batch, numbered from 0 in the order of [`Tail::push`]. Not a clone of its `Bytes`: a batch may have a
    /// thousand runs, and each clone would change the reference count.
    batch: u64,
    /// Where the run starts in the batch.
    start: u32,
    /// Where the run ends in the batch.
    end: u32,
}

#[derive(Debug)]
struct TailBatch {
    bytes: Bytes,
    /// The topics of its runs.
    topics: Vec<u32>,
}

/// The tail cache: the newest committed batches, up to a size limit.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The runs of each topic, the oldest first.
    topics: NumberMap<u32, VecDeque<TailRun>>,
    /// The batches, the oldest first.
    batches: VecDeque<TailBatch>,
    /// The number of batches that were removed.
    removed_batches: u64,
    /// The size of all batches.
    bytes: usize,
    /// The limit of `bytes`.
    limit_bytes: usize,
    /// Topic lists of removed batches, kept for reuse.
    spare_lists: Vec<Vec<u32>>,
}

/// The place of a run in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlace {
    /// The topic, or [`TOPIC_RECORDS`] or [`STATE_RECORDS`].
    pub(crate) topic: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Where the run starts in the batch.
    pub(crate) start: usize,
    /// Where the run ends in the batch.
    pub(crate) end: usize,
}

impl RunPlace {
    /// Whether it is a run of events, not of topic or state records.
    pub(crate) fn is_events(&self) -> bool {
        self.topic != TOPIC_RECORDS && self.topic != STATE_RECORDS
    }
}

impl Tail {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        let (topics, batches, spare_lists) = Default::default();
        Self { topics, batches, removed_batches: 0, bytes: 0, limit_bytes, spare_lists }
    }

    pub(crate) fn push(&mut self, batch: &Bytes, runs: impl Iterator<Item = RunPlace>) {
        let mut topics = self.spare_lists.pop().unwrap_or_default();
        let number = self.removed_batches + self.batches.len() as u64;
        for run in runs {
            topics.push(run.topic);
            self.topics.entry(run.topic).or_default().push_back(TailRun {
                first_seq: run.first_seq,
                last_seq: run.last_seq,
                batch: number,
                start: run.start as u32,
                end: run.end as u32,
            });
        }
        self.bytes += batch.len();
        self.batches.push_back(TailBatch { bytes: batch.clone(), topics });
        while self.bytes > self.limit_bytes {
            let Some(mut oldest) = self.batches.pop_front() else { break };
            let number = self.removed_batches;
            self.removed_batches += 1;
            self.bytes -= oldest.bytes.len();
            for topic in oldest.topics.drain(..) {
                // If the topic was deleted, `remove_topic` has removed the run of this batch. A run that is at the
                // front belongs to a later batch.
                let Some(runs) = self.topics.get_mut(&topic) else { continue };
                if runs.front().is_some_and(|run| run.batch == number) {
                    runs.pop_front();
                }
                if runs.is_empty() {
                    self.topics.remove(&topic);
                }
            }
            self.spare_lists.push(oldest.topics);
        }
    }

    /// Removes a topic's runs. The topic lists of batches still contain the topic.
    pub(crate) fn remove_topic(&mut self, topic: u32) {
        self.topics.remove(&topic);
    }

    /// Whether the tail contains this seq of a topic, and therefore all later ones.
    pub(crate) fn contains(&self, topic: u32, seq: u64) -> bool {
        let Some(runs) = self.topics.get(&topic) else { return false };
        let range = runs.front().zip(runs.back());
        range.is_some_and(|(oldest, newest)| (oldest.first_seq..=newest.last_seq).contains(&seq))
    }

    /// Collects the runs that a read from seq `from` with this limit needs. Returns false if the tail does not contain
    /// `from`, or contains it more than `walk_max` events into a run. The caller parses the runs after it has released the
    /// lock of the view.
    pub(crate) fn collect(
        &self,
        topic: u32,
        from: u64,
        limit: ReadLimit,
        walk_max: u64,
        into: &mut Vec<Bytes>,
    ) -> bool {
        let Some(runs) = self.topics.get(&topic) else { return false };
        let at = runs.partition_point(|run| run.last_seq < from);
        match runs.get(at) {
            Some(run) if from.saturating_sub(run.first_seq) > walk_max => return false,
            Some(run) if run.first_seq <= from => {}
            _ => return false,
        }
        let (mut events, mut bytes) = (0, 0);
        for run in runs.range(at..) {
            let batch = &self.batches[(run.batch - self.removed_batches) as usize].bytes;
            into.push(batch.slice(run.start as usize..run.end as usize));
            events += (run.last_seq - run.first_seq.max(from) + 1) as usize;
            // `bytes` is the size of the runs before this one. Of the first run only a part may be needed, so it alone
            // never reaches the byte limit.
            if events >= limit.events || bytes >= limit.bytes {
                break;
            }
            bytes += (run.end - run.start) as usize;
        }
        true
    }
}
