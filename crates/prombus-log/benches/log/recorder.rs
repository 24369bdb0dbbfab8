//! Records the commits of a log during a round: their sizes, so that the raw loop can write the same, and their durations.

use crate::Failure;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use prombus_log::{Committed, Notice, Observer};
use std::time::{Duration, Instant};

/// How long to wait for the report of a commit, which the log sends after it has woken the waiting threads.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A histogram of durations.
pub struct Latencies {
    nanos: Histogram<u64>,
}

/// The percentiles of a histogram of durations.
#[derive(Clone, Copy, Debug)]
pub struct Percentiles {
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl Latencies {
    pub fn new() -> Self {
        let minute = Duration::from_secs(60).as_nanos() as u64;
        Self { nanos: Histogram::new_with_bounds(1_000, minute, 3).expect("the bounds are valid") }
    }

    pub fn add(&mut self, duration: Duration, count: u64) {
        self.nanos.saturating_record_n(duration.as_nanos() as u64, count);
    }

    pub fn reset(&mut self) {
        self.nanos.reset();
    }

    pub fn percentiles(&self) -> Percentiles {
        let at = |quantile| Duration::from_nanos(self.nanos.value_at_quantile(quantile));
        Percentiles { p50: at(0.5), p99: at(0.99), max: Duration::from_nanos(self.nanos.max()) }
    }
}

/// Observes a log. Records nothing until it is started.
pub struct Recorder {
    recording: Mutex<Recording>,
}

struct Recording {
    /// Only batches after this one are recorded.
    after_batch: u64,
    batch_bytes: Vec<usize>,
    /// The number of events in all recorded batches.
    events: u64,
    latencies: Latencies,
}

impl Recorder {
    /// Allocates room for this many commits, so that recording them does not allocate.
    pub fn new(commits: usize) -> Self {
        let recording = Recording {
            after_batch: u64::MAX,
            batch_bytes: Vec::with_capacity(commits),
            events: 0,
            latencies: Latencies::new(),
        };
        Self { recording: Mutex::new(recording) }
    }

    pub fn start(&self, after_batch: u64) {
        self.recording.lock().after_batch = after_batch;
    }

    /// Takes the sizes of the batches since the last start. Waits until the log has reported `events` events since the
    /// first start.
    pub fn take(&self, events: u64, batch_bytes: &mut Vec<usize>) -> Result<(), Failure> {
        let deadline = Instant::now() + REPORT_TIMEOUT;
        loop {
            let mut recording = self.recording.lock();
            if recording.events >= events {
                recording.after_batch = u64::MAX;
                batch_bytes.clear();
                batch_bytes.append(&mut recording.batch_bytes);
                return Ok(());
            }
            if Instant::now() > deadline {
                let reported = recording.events;
                return Err(format!("{events} events were appended, {reported} committed").into());
            }
            drop(recording);
            std::thread::yield_now();
        }
    }

    /// The percentiles of the commit durations.
    pub fn percentiles(&self) -> Percentiles {
        self.recording.lock().latencies.percentiles()
    }
}

impl Observer for Recorder {
    fn committed(&self, committed: &Committed<'_>) {
        let mut recording = self.recording.lock();
        if committed.batch > recording.after_batch {
            recording.batch_bytes.push(committed.bytes);
            recording.events += committed.events as u64;
            recording.latencies.add(committed.duration, 1);
        }
    }

    fn notice(&self, notice: &Notice) {
        eprintln!("notice of the log: {notice}");
    }
}
