//! The newest committed batches, in memory, shared by all live readers. A batch is added after its fdatasync, and removed when
//! the limit is reached; readers that still hold it keep it alive.

use crate::number_map::NumberMap;
use crate::read::chunk::ReadLimit;
use crate::record::{STATE_RECORDS, TOPIC_RECORDS};
use bytes::Bytes;
use std::collections::VecDeque;

/// A run of one topic inside a committed batch.
#[derive(Debug)]
struct TailRun {
    first_seq: u64,
    last_seq: u64,
    /// The batch, by how many came before it, and the place in it. Not a share of its bytes: a batch may have a thousand
    /// runs, and would be counted up and down for each.
    batch: u64,
    start: u32,
    end: u32,
}

#[derive(Debug)]
struct TailBatch {
    bytes: Bytes,
    topics: Vec<u32>,
}

/// A bounded window on the end of the log.
#[derive(Debug)]
pub(crate) struct Tail {
    topics: NumberMap<u32, VecDeque<TailRun>>,
    batches: VecDeque<TailBatch>,
    /// Batches that left.
    left: u64,
    bytes: usize,
    limit_bytes: usize,
    /// Topic lists of batches that left, to be used again.
    spare_lists: Vec<Vec<u32>>,
}

/// The place of a run in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlace {
    pub(crate) topic: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) start: usize,
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
        Self { topics, batches, left: 0, bytes: 0, limit_bytes, spare_lists }
    }

    pub(crate) fn push(&mut self, batch: &Bytes, runs: impl Iterator<Item = RunPlace>) {
        let mut topics = self.spare_lists.pop().unwrap_or_default();
        let number = self.left + self.batches.len() as u64;
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
            let number = self.left;
            self.left += 1;
            self.bytes -= oldest.bytes.len();
            for topic in oldest.topics.drain(..) {
                // One that was deleted has no runs here, or only later ones.
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

    /// Forgets a topic's runs; the lists of batches go on naming it.
    pub(crate) fn remove_topic(&mut self, topic: u32) {
        self.topics.remove(&topic);
    }

    /// Whether it has this seq of a topic, and so all later ones.
    pub(crate) fn contains(&self, topic: u32, seq: u64) -> bool {
        let Some(runs) = self.topics.get(&topic) else { return false };
        let range = runs.front().zip(runs.back());
        range.is_some_and(|(oldest, newest)| (oldest.first_seq..=newest.last_seq).contains(&seq))
    }

    /// Takes the runs from `from` on that a read with this limit needs; false when the tail does not have `from`, or has it
    /// more than `walk_max` events into a run. They are parsed outside the lock.
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
            let batch = &self.batches[(run.batch - self.left) as usize].bytes;
            into.push(batch.slice(run.start as usize..run.end as usize));
            events += (run.last_seq - run.first_seq.max(from) + 1) as usize;
            // The first run may be needed in part only, so its bytes do not count.
            if events >= limit.events || bytes >= limit.bytes {
                break;
            }
            bytes += (run.end - run.start) as usize;
        }
        true
    }
}
