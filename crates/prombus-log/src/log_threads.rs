//! The two threads of a log: one commits, one does maintenance. Closing joins them, waits for long jobs, and then does the
//! last commit and checkpoint itself.
//!
//! When any part fails, this module wakes all waiting threads and prevents new jobs.

use crate::context::Context;
use crate::error::Unavailable;
use crate::maintain::maintenance::Maintenance;
use crate::read::committed_log::CommittedLog;
use crate::recover::build_parts::OpenedLog;
use crate::step::Step;
use crate::storage::Lock;
use crate::write::append_queue::AppendQueue;
use crate::write::writer::Writer;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest time between two rounds of maintenance, so that failed work is retried.
const MAINTENANCE_RETRY: Duration = Duration::from_secs(1);

/// The parts of an open log. Maintenance and the writer call the queue and the committed log, which never call back.
pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) committed: Arc<CommittedLog>,
    pub(crate) queue: Arc<AppendQueue>,
    pub(crate) writer: Writer,
    pub(crate) maintenance: Maintenance,
    is_failure_announced: AtomicBool,
}

impl Parts {
    pub(crate) fn new(opened: OpenedLog) -> Self {
        let OpenedLog { context, committed, queue, writer, maintenance } = opened;
        Self { context, committed, queue, writer, maintenance, is_failure_announced: AtomicBool::new(false) }
    }

    /// Returns `result` unchanged. Wraps calls in which a write may fail: if the log has stopped writing because of a failure,
    /// this method stops the long jobs and wakes all waiting threads.
    #[inline]
    pub(crate) fn announcing<T>(&self, result: T) -> T {
        if self.context.failure.get().is_some() {
            self.announce_failure();
        }
        result
    }

    /// Stops the long jobs and wakes all waiting threads. Does so only on the first call.
    #[cold]
    fn announce_failure(&self) {
        if !self.is_failure_announced.swap(true, Ordering::SeqCst) {
            self.maintenance.jobs.stop();
            self.committed.durable.wake();
            self.queue.wake_all();
            self.committed.maintenance_due.notify();
        }
    }

    fn fail(&self, reason: &str) {
        self.context.fail(reason.to_owned());
        self.announce_failure();
    }

    fn run_committer(&self) {
        loop {
            match self.announcing(self.writer.step_commit()) {
                Step::Worked => {}
                Step::Stopped => return,
                Step::Idle if self.queue.is_closed() => return,
                Step::Idle => self.queue.commit_due.wait(None),
            }
        }
    }

    fn run_maintenance(&self) {
        loop {
            match self.announcing(self.maintenance.step()) {
                Step::Worked => {}
                Step::Stopped => return,
                Step::Idle if self.queue.is_closed() => return,
                Step::Idle => self.committed.maintenance_due.wait(Some(MAINTENANCE_RETRY)),
            }
        }
    }
}

/// Owns the threads and the folder's lock. Dropped with the last `Log`.
pub(crate) struct Handle {
    pub(crate) parts: Arc<Parts>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<Box<dyn Lock>>>,
}

impl Handle {
    pub(crate) fn new(parts: Arc<Parts>, lock: Box<dyn Lock>) -> Self {
        Self { parts, threads: Mutex::new(Vec::new()), lock: Mutex::new(Some(lock)) }
    }

    pub(crate) fn start_threads(&self) -> io::Result<()> {
        self.start("prombus-commit", Parts::run_committer)?;
        self.start("prombus-house", Parts::run_maintenance)
    }

    fn start(&self, name: &str, run: fn(&Parts)) -> io::Result<()> {
        let parts = Arc::clone(&self.parts);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let guard = PanicGuard { parts: &parts };
            run(&parts);
            std::mem::forget(guard);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    pub(crate) fn close(&self) -> Result<(), Unavailable> {
        // Held to the end: a second call must not release the folder while the first one still writes.
        let mut lock = self.lock.lock();
        let parts = &self.parts;
        let was_closed = parts.queue.close();
        parts.maintenance.jobs.stop();
        parts.queue.notify_room();
        parts.queue.commit_due.notify();
        parts.committed.maintenance_due.notify();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked must not be mistaken for one that finished its work.
            if thread.join().is_err() {
                parts.fail(PANICKED);
            }
        }
        // Long jobs write into the folder, and another process may lock it as soon as this call returns.
        parts.maintenance.jobs.wait();
        if !was_closed {
            while parts.announcing(parts.writer.step_commit()) == Step::Worked {}
            if parts.context.failure.get().is_none() {
                parts.maintenance.finish();
                parts.announcing(());
            }
        }
        lock.take();
        parts.context.failure.check()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A caller that needs the result calls `Log::close`.
        let _ = self.close();
    }
}

const PANICKED: &str = "a thread of the log panicked";

/// Stops writing if a thread of the log panics. Otherwise appenders would wait indefinitely.
struct PanicGuard<'a> {
    parts: &'a Parts,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.parts.fail(PANICKED);
    }
}
