//! Measures durable appends: a publisher with a log, and immediately after it the raw loop with the same batches.

use crate::append_rows::{AppendRow, Plan, Segments};
use crate::publisher::{self, EVENT_BYTES, Load, Publisher};
use crate::raw::RawLoop;
use crate::recorder::{Percentiles, Recorder};
use crate::scratch::Scratch;
use crate::table::{grouped, percent};
use crate::{ALLOCATOR, Failure};
use prombus_log::{CleanOptions, LiveCount, Liveness, Log, Options, TopicId};
use stats_alloc::Region;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// More files than segments in use, so that the raw loop does not overwrite bytes that it has just written.
const SUSTAINED_RAW_FILES: usize = 8;
/// In a round with retention, cleaning starts when there are this many segments.
const RETAINED_SEGMENTS: usize = 8;
/// A pause for the background work of the log after the publisher has stopped. It is longer after a sustained round,
/// because a segment may have to be filled with zeros.
const PAUSE: Duration = Duration::from_millis(50);
const SUSTAINED_PAUSE: Duration = Duration::from_secs(1);

/// The result of one round of a row.
#[derive(Clone, Copy, Debug)]
pub struct AppendRound {
    pub totals: Totals,
    /// The duration of the write and the fdatasync of a batch, as the log reports it.
    pub commit: Percentiles,
    /// The time from the call of append until the event is known to be durable.
    pub durable: Percentiles,
    /// The time of the raw loop with the same batches.
    pub raw_elapsed: Duration,
    pub raw_commit: Percentiles,
}

/// Totals of the log over all slices of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub events: u64,
    pub commits: u64,
    pub bytes: u64,
    pub elapsed: Duration,
    /// Allocations by all threads.
    pub allocations: u64,
    pub allocated_bytes: u64,
    /// Segment files that were created during the measurement.
    pub new_files: usize,
}

/// Runs a round: the log and the raw loop alternate slice by slice.
pub fn measure(row: &AppendRow, plan: Plan, scratch: &Scratch) -> Result<AppendRound, Failure> {
    scratch.settle()?;
    let commits = (plan.slice.as_secs_f64() * 20_000.0) as usize + 10_000;
    let recorder = Arc::new(Recorder::new(commits));
    let observer = Arc::clone(&recorder);
    let options = Options { observer, ..Options::default() };
    let segment_events = options.segment_bytes as usize / EVENT_BYTES;
    let folder = scratch.fresh();
    let log = Log::open(folder.path(), options)?;
    let topics = publisher::make_topics(&log, row.topics)?;
    let body = publisher::body();
    let mut publisher = Publisher::new(&log, &topics, &body, row.ids);
    let raw_folder = scratch.fresh();
    let mut raw = RawLoop::new(raw_folder.path(), if row.is_burst() { 1 } else { SUSTAINED_RAW_FILES })?;

    let warm_up_events = (plan.warm_up_segments * segment_events) as u64;
    publisher.run(Load::new(1_024), |_, events| events >= warm_up_events)?;
    publisher.latencies.reset();

    let mut totals = Totals::default();
    let mut batch_bytes = Vec::with_capacity(commits);
    for _ in 0..plan.slices {
        if row.is_burst() {
            log.clean(&NothingLives, &CleanOptions::default())?;
        }
        scratch.settle()?;
        std::thread::sleep(PAUSE);
        run_slice(row, plan.slice, folder.path(), &log, &mut publisher, &recorder, &mut totals)?;
        recorder.take(totals.events, &mut batch_bytes)?;
        totals.commits += batch_bytes.len() as u64;
        totals.bytes += batch_bytes.iter().map(|&bytes| bytes as u64).sum::<u64>();
        std::thread::sleep(if row.is_burst() { PAUSE } else { SUSTAINED_PAUSE });
        raw.replay(&batch_bytes)?;
    }
    let durable = publisher.latencies.percentiles();
    drop(publisher);
    log.close()?;
    let commit = recorder.percentiles();
    let (raw_elapsed, raw_commit) = (raw.elapsed, raw.latencies.percentiles());
    Ok(AppendRound { totals, commit, durable, raw_elapsed, raw_commit })
}

/// The measured part of a round.
fn run_slice(
    row: &AppendRow,
    length: Duration,
    folder: &Path,
    log: &Log,
    publisher: &mut Publisher<'_>,
    recorder: &Recorder,
    totals: &mut Totals,
) -> Result<(), Failure> {
    let files_before = segment_files(folder)?;
    recorder.start(log.durable_batch());
    let load = Load::new(row.in_flight);
    let region = Region::new(ALLOCATOR);
    let started = Instant::now();
    let mut run = || publisher.run(load, |now, _| now >= started + length);
    let events = if row.segments == Segments::Retention { while_cleaning(log, run)? } else { run()? };
    totals.elapsed += started.elapsed();
    let allocated = region.change();
    totals.events += events;
    totals.allocations += (allocated.allocations + allocated.reallocations) as u64;
    totals.allocated_bytes += allocated.bytes_allocated as u64;
    totals.new_files += segment_files(folder)?.saturating_sub(files_before);
    Ok(())
}

/// Calls `run` while another thread cleans the growing log.
fn while_cleaning<R>(log: &Log, run: impl FnOnce() -> R) -> R {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                if log.stats().segments < RETAINED_SEGMENTS {
                    std::thread::sleep(Duration::from_millis(20));
                } else if let Err(error) = log.clean(&NothingLives, &CleanOptions::default()) {
                    // The publisher gets the same error and ends the round.
                    eprintln!("cleaning failed: {error}");
                    return;
                }
            }
        });
        let result = run();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

/// All events are dead by retention.
struct NothingLives;

impl Liveness for NothingLives {
    fn first_live(&self, _topic: TopicId) -> u64 {
        u64::MAX
    }

    fn is_sparse(&self, _topic: TopicId) -> bool {
        false
    }

    fn live_in(&self, _topic: TopicId, _first_seq: u64, _last_seq: u64) -> Option<LiveCount> {
        None
    }

    fn is_live(&self, _topic: TopicId, _seq: u64) -> bool {
        false
    }
}

fn segment_files(folder: &Path) -> Result<usize, Failure> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        count += usize::from(entry?.path().extension().is_some_and(|extension| extension == "seg"));
    }
    Ok(count)
}

impl AppendRound {
    pub fn events_per_second(&self) -> f64 {
        self.totals.events as f64 / self.totals.elapsed.as_secs_f64()
    }

    pub fn raw_events_per_second(&self) -> f64 {
        self.totals.events as f64 / self.raw_elapsed.as_secs_f64()
    }

    pub fn ratio(&self) -> f64 {
        self.events_per_second() / self.raw_events_per_second()
    }

    pub fn allocations_per_event(&self) -> f64 {
        self.totals.allocations as f64 / self.totals.events as f64
    }
}

impl fmt::Display for AppendRound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}/s, raw {}/s, {}",
            grouped(self.events_per_second()),
            grouped(self.raw_events_per_second()),
            percent(self.ratio())
        )
    }
}
