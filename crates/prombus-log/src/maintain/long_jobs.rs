//! Long work that callers ask for, cleaning and backup: how it is told to stop, how closing waits for it, and its pace.
//!
//! Such work holds no lock while it reads and writes. It goes in pieces of at most 1 MiB and asks between two of them whether
//! the log is still open, so that closing waits for one piece and not for the whole job.

use crate::write::append_queue::AppendQueue;
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How much is read or written between two looks at the clock.
pub(crate) const JOB_PIECE_BYTES: u64 = 1 << 20;
/// Work shorter than this continues without a rest, which would take longer than intended.
const SHORTEST_WORK: Duration = Duration::from_micros(500);

/// The jobs that run.
#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<JobsState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobsState {
    is_stopped: bool,
    is_cleaning: bool,
    running: usize,
}

/// What a job does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// One at a time.
    Clean,
    Backup,
}

/// Why a job may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Stopped,
    Busy,
}

/// A job that runs, until it is dropped.
pub(crate) struct Job<'a> {
    jobs: &'a Jobs,
    kind: JobKind,
}

impl Jobs {
    pub(crate) fn begin(&self, kind: JobKind) -> Result<Job<'_>, Refused> {
        let mut state = self.state.lock();
        if state.is_stopped {
            return Err(Refused::Stopped);
        }
        if kind == JobKind::Clean && std::mem::replace(&mut state.is_cleaning, true) {
            return Err(Refused::Busy);
        }
        state.running += 1;
        Ok(Job { jobs: self, kind })
    }

    /// Tells all jobs to stop; none begins any more.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits until no job runs.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        while state.running > 0 {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Waits for a while; false, and at once, when the jobs shall stop.
    fn pause(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        let end = Instant::now() + duration;
        while !state.is_stopped && !self.changed.wait_until(&mut state, end).timed_out() {}
        !state.is_stopped
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let mut state = self.jobs.state.lock();
        state.running -= 1;
        if self.kind == JobKind::Clean {
            state.is_cleaning = false;
        }
        drop(state);
        self.jobs.changed.notify_all();
    }
}

/// Lets a job take a share of the time and no more.
pub(crate) struct Pace<'a> {
    jobs: &'a Jobs,
    queue: &'a AppendQueue,
    /// Without threads nothing waits.
    never_rests: bool,
    duty_percent: u32,
    since: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(jobs: &'a Jobs, queue: &'a AppendQueue, threads: bool, duty_percent: u8) -> Self {
        let duty_percent = u32::from(duty_percent.clamp(1, 100));
        let never_rests = duty_percent == 100 || !threads;
        Self { jobs, queue, never_rests, duty_percent, since: Instant::now() }
    }

    /// After a piece of work: rests as long as that asks for. False when the log is closed or writing stopped.
    pub(crate) fn rest(&mut self) -> bool {
        let jobs = self.jobs;
        if self.never_rests {
            return !jobs.is_stopped();
        }
        let worked = self.since.elapsed();
        if worked < SHORTEST_WORK {
            return !jobs.is_stopped();
        }
        // On a full disk publishers wait for what is freed here.
        let pause = worked * (100 - self.duty_percent) / self.duty_percent;
        let goes_on = if self.queue.is_full() { !jobs.is_stopped() } else { jobs.pause(pause) };
        self.since = Instant::now();
        goes_on
    }
}
