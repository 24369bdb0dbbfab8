//! What the log reports about its commits while a round runs: their sizes, for the raw loop to write the same, and how long
//! they took.

use crate::Failure;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use prombus_log::{Committed, Notice, Observer};
use std::time::{Duration, Instant};

/// The log reports a commit a moment after those who wait for it go on.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long something took, many times.
pub struct Latencies {
    nanos: Histogram<u64>,
}

/// What is told of it.
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

/// Listens to a log. Records nothing until it is started.
pub struct Recorder {
    recording: Mutex<Recording>,
}

struct Recording {
    /// Batches after this one count.
    after_batch: u64,
    batch_bytes: Vec<usize>,
    /// In all batches that counted.
    events: u64,
    latencies: Latencies,
}

impl Recorder {
    /// With room for this many commits, so that recording them does not allocate.
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

    /// Takes the sizes of the batches since the start, once the log has reported this many events in all starts together.
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

    /// How long the commits took.
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
        eprintln!("the log says: {notice}");
    }
}
