//! Long jobs that callers start: cleaning and backup. This module stops them, waits for them at close, and limits their
//! pace.
//!
//! A job holds no lock while it reads and writes. It works in pieces of at most 1 MiB and checks between two pieces whether
//! the log is still open. So closing waits for one piece and not for the whole job.

use crate::write::append_queue::AppendQueue;
use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The size of a piece: a job may rest after each.
pub(crate) const JOB_PIECE_BYTES: u64 = 1 << 20;
/// After less work than this the job does not rest: a very short rest would take longer than intended.
const SHORTEST_WORK: Duration = Duration::from_micros(500);

/// The running jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<JobsState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobsState {
    is_stopped: bool,
    is_cleaning: bool,
    /// The number of running jobs.
    running: usize,
}

/// The kind of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// A cleaning. At most one runs at a time.
    Clean,
    Backup,
}

/// Why a job cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The log is closed, or writing has stopped.
    Stopped,
    /// Another cleaning is running.
    Busy,
}

/// A running job. It ends when this is dropped.
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

    /// Tells all jobs to stop, and refuses new ones.
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

    /// Waits for `duration`. Returns false immediately if the jobs must stop.
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

/// Limits a job to a share of the time.
pub(crate) struct Pace<'a> {
    jobs: &'a Jobs,
    queue: &'a AppendQueue,
    /// Set in a log without threads, which never waits, and for a share of 100 percent.
    never_rests: bool,
    /// The percentage of the time that the job may work.
    duty_percent: u32,
    /// When the current piece of work began.
    since: Instant,
}

impl<'a> Pace<'a> {
    pub(super) fn new(jobs: &'a Jobs, queue: &'a AppendQueue, threads: bool, duty_percent: u8) -> Self {
        let duty_percent = u32::from(duty_percent.clamp(1, 100));
        let never_rests = duty_percent == 100 || !threads;
        Self { jobs, queue, never_rests, duty_percent, since: Instant::now() }
    }

    /// Called after a piece of work: rests in proportion to its duration. Returns false if the log is closed or writing
    /// stopped.
    pub(crate) fn rest(&mut self) -> bool {
        let jobs = self.jobs;
        if self.never_rests {
            return !jobs.is_stopped();
        }
        let worked = self.since.elapsed();
        if worked < SHORTEST_WORK {
            return !jobs.is_stopped();
        }
        // On a full disk the job does not rest, because publishers need the space that cleaning frees.
        let pause = worked * (100 - self.duty_percent) / self.duty_percent;
        let may_continue = if self.queue.is_full() { !jobs.is_stopped() } else { jobs.pause(pause) };
        self.since = Instant::now();
        may_continue
    }
}
