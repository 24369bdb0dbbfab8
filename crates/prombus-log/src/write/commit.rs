//! The committer: takes the pending batch, writes it, syncs it, and makes it visible to readers.
//!
//! There is no timer. While one fdatasync runs, appends collect in the next batch, which is written as soon as the
//! fdatasync returns. [`Committer::step`] commits one batch. The log's commit thread calls it in a loop. In a log
//! without threads, for example in a simulation, the caller does.

use crate::buffer_pool::BufferPool;
use crate::checkpoint::Mark;
use crate::context::Context;
use crate::event_id::EventId;
use crate::layout::SEGMENT_DATA_START;
use crate::observer::{Committed, CommittedRun};
use crate::read::committed_log::CommittedLog;
use crate::read::tail::RunPlace;
use crate::record::{self, HEADER_BYTES, STATE_RECORDS};
use crate::segment::Segment;
use crate::step::Step;
use crate::storage::SyncPoint;
use crate::topics::TopicId;
use crate::write::append_queue::AppendQueue;
use crate::write::pending_batch::PendingBatch;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum size of the free buffers that are kept for batches.
const POOLED_BYTES: usize = 32 << 20;
/// Smaller batches are copied into a buffer of their own size, so that pooled buffers remain available for large batches.
const LARGE_BATCH_BYTES: usize = 64 * 1024;
/// The page size of the kernel's page cache.
const PAGE_BYTES: u64 = 4096;

/// The change of segment if a batch starts a new one.
struct Rolled {
    /// The previous segment and its length.
    old: Option<(Arc<Segment>, u64)>,
    next: Arc<Segment>,
}

/// Writes batches. A log has one committer, and no other part writes batches to segments of kind
/// [`Log`](crate::segment::SegmentKind::Log).
pub(crate) struct Committer {
    context: Arc<Context>,
    committed: Arc<CommittedLog>,
    queue: Arc<AppendQueue>,
    batch_pool: Arc<BufferPool>,
    /// The segment of the last batch; `None` before the first batch, if the open found no segment to continue.
    segment: Option<Arc<Segment>>,
    /// The position of the next batch in the segment.
    position: u64,
    /// The chain value of the last COMMIT.
    chain: u32,
    /// Between commits: an empty batch that is swapped for the pending one. During a commit: the batch that is written.
    spare: PendingBatch,
    /// The encoded run table of the batch that is written.
    table: Vec<u8>,
    /// The places of the runs in the batch that is written.
    places: Vec<RunPlace>,
    /// The runs of events in the batch, for the observer.
    committed_runs: Vec<CommittedRun>,
}

impl Committer {
    pub(crate) fn new(
        context: Arc<Context>,
        committed: Arc<CommittedLog>,
        queue: Arc<AppendQueue>,
        segment: Option<Arc<Segment>>,
    ) -> Self {
        let mark = committed.view().mark;
        Self {
            context,
            committed,
            queue,
            batch_pool: BufferPool::new(POOLED_BYTES),
            segment,
            position: mark.position,
            chain: mark.chain,
            spare: PendingBatch::new(0),
            table: Vec::new(),
            places: Vec::new(),
            committed_runs: Vec::new(),
        }
    }

    /// Makes the pending batch durable with one write, one fdatasync and one wake-up.
    pub(crate) fn step(&mut self) -> Step {
        if self.context.failure.get().is_some() {
            return Step::Stopped;
        }
        if !self.queue.take_batch(&mut self.spare) {
            return Step::Idle;
        }
        match self.write() {
            Ok(duration) => {
                self.context.observer().committed(&Committed {
                    batch: self.spare.batch(),
                    events: self.spare.events,
                    bytes: self.spare.bytes() + HEADER_BYTES,
                    runs: &self.committed_runs,
                    duration,
                });
                Step::Worked
            }
            Err(error) => {
                let file = self.segment.as_ref().map_or_else(String::new, |segment| segment.name());
                self.context.fail(format!("writing {file}: {error}"));
                Step::Stopped
            }
        }
    }

    /// Writes and syncs the batch, and makes it visible. Returns how long the write and the sync took.
    fn write(&mut self) -> io::Result<Duration> {
        let rolled = match self.spare.roll_to.take() {
            None => None,
            Some(next) => {
                let old = self.segment.replace(Arc::clone(&next)).map(|segment| (segment, self.position));
                self.position = SEGMENT_DATA_START;
                Some(Rolled { old, next })
            }
        };
        let segment = Arc::clone(self.segment.as_ref().expect("a batch has a segment before it is taken"));

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
        let mut block = self.gather();
        let content = block.len();
        let pending = &self.spare;
        let chain = record::put_commit(
            &mut block,
            segment.id.salt,
            pending.batch(),
            pending.commit_ms,
            content,
            self.chain,
            &self.table,
        );
        let file = segment.file()?;
        let started = Instant::now();
        // The block is filled up to the end of a page, because to write only a part of a page that is not cached, the
        // kernel would first have to read the page.
        let length = block.len();
        let end = (self.position + length as u64).next_multiple_of(PAGE_BYTES).min(segment.id.capacity);
        block.resize((end - self.position) as usize, 0);
        file.write_at(&block, self.position)?;
        block.truncate(length);
        // No record of the batch is acknowledged before this sync has succeeded.
        file.sync(SyncPoint::LogData)?;
        let duration = started.elapsed();

        let start = self.position;
        self.chain = chain;
        self.position += block.len() as u64;
        let mark =
            Mark { segment: segment.id.number, position: self.position, batch: pending.batch(), chain };
        self.publish(rolled, block, start, mark);
        Ok(duration)
    }

    /// Returns the frames of all runs in one buffer, with room for the COMMIT. A single large run is not copied: its own
    /// buffer is used.
    fn gather(&mut self) -> Vec<u8> {
        let pending = &mut self.spare;
        let length = pending.bytes() + HEADER_BYTES;
        let is_single = pending.used_runs == 1 && self.places.len() == 1;
        if length < LARGE_BATCH_BYTES {
            let mut block = Vec::with_capacity(length + PAGE_BYTES as usize);
            pending.all_runs().for_each(|run| block.extend_from_slice(&run.bytes));
            return block;
        }
        let mut block = self.batch_pool.take();
        if is_single {
            std::mem::swap(&mut block, &mut pending.runs[0].bytes);
        } else {
            block.reserve(length + PAGE_BYTES as usize);
            pending.all_runs().for_each(|run| block.extend_from_slice(&run.bytes));
        }
        block
    }

    /// Makes the batch, which is durable at this point, visible to readers, and wakes the threads that wait for it.
    fn publish(&mut self, rolled: Option<Rolled>, block: Vec<u8>, start: u64, mark: Mark) {
        let has_rolled = rolled.is_some();
        let pending = &self.spare;
        let block =
            if block.len() < LARGE_BATCH_BYTES { Bytes::from(block) } else { self.batch_pool.share(block) };
        let event_places = || self.places.iter().copied().filter(RunPlace::is_events);
        self.committed_runs.clear();
        self.committed_runs.extend(event_places().map(|place| CommittedRun {
            topic: TopicId(place.topic),
            first_seq: place.first_seq,
            last_seq: place.last_seq,
        }));
        let checkpoint_bytes = self.context.options.checkpoint_bytes;
        let checkpoint_due = self.committed.change_view(|view| {
            if let Some(Rolled { old, next }) = rolled {
                view.roll(old, next);
            }
            view.apply_topic_changes(&pending.topic_changes);
            for (run, place) in pending.event_runs().iter().zip(event_places()) {
                view.active_index.add_run(run.topic, &run.index, start as u32 + place.start as u32);
                view.set_last_seq(place.topic, place.last_seq);
            }
            view.tail.push(&block, event_places());
            if let Some(place) = self.places.last().filter(|place| place.topic == STATE_RECORDS) {
                // Copied, because it is kept until the next checkpoint and must not keep the whole batch in memory.
                view.state_records.push(Bytes::copy_from_slice(&block[place.start..place.end]));
            }
            if pending.last_server_id != EventId::default() {
                view.last_server_id = pending.last_server_id;
            }
            view.last_commit_ms = pending.commit_ms;
            view.mark = mark;
            view.since_checkpoint += block.len() as u64;
            view.since_checkpoint >= checkpoint_bytes
        });
        self.committed.durable.advance(pending.batch());
        self.queue.note_durable();
        if has_rolled || checkpoint_due {
            self.committed.maintenance_due.notify();
        }
    }
}
