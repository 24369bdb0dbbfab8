//! The queue of events that groups have given up. A worker thread takes them and writes their dead letters; the queue also
//! wakes and stops the worker.

use super::cell::GroupCell;
use crate::delivery::GiveUp;
use crate::engine::MayBlock;
use crate::local::lock_order::{LEAF, RankedMutex};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Events whose dead letters are still to be written, in the order in which they were given up.
#[derive(Default)]
pub(in crate::local) struct DeadLetterQueue {
    queue: RankedMutex<LEAF, VecDeque<(Arc<GroupCell>, GiveUp)>>,
    worker: Mutex<Worker>,
    changed: Condvar,
    /// Set in a bus without threads: writes the dead letters on the calling thread.
    without_worker: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Worker {
    is_woken: bool,
    is_stopped: bool,
}

impl DeadLetterQueue {
    /// For a bus without threads: sets the function that writes dead letters. It runs on the thread that gives up an event.
    pub(in crate::local) fn work_without_thread(&self, work: impl Fn() + Send + Sync + 'static) {
        let _ = self.without_worker.set(Box::new(work));
    }

    /// Whether a thread writes the dead letters.
    pub(in crate::local) fn has_thread(&self) -> bool {
        self.without_worker.get().is_none()
    }

    pub(super) fn extend(&self, dead_letters: impl Iterator<Item = (Arc<GroupCell>, GiveUp)>) {
        self.queue.lock().extend(dead_letters);
    }

    pub(in crate::local) fn pop(&self) -> Option<(Arc<GroupCell>, GiveUp)> {
        self.queue.lock().pop_front()
    }

    /// Wakes the worker, or, without a worker, writes the dead letters. Called without locks.
    pub(super) fn work(&self) {
        match self.without_worker.get() {
            Some(work) => work(),
            None => self.wake(),
        }
    }

    /// Makes the worker thread look for work now.
    pub(in crate::local) fn wake(&self) {
        self.worker.lock().is_woken = true;
        self.changed.notify_one();
    }

    /// Makes the worker thread end after the dead letter that it is writing.
    pub(in crate::local) fn stop(&self) {
        self.worker.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Whether the worker thread was told to end.
    pub(in crate::local) fn is_stopped(&self) -> bool {
        self.worker.lock().is_stopped
    }

    /// Sleeps until there may be work. Returns false when the worker was stopped.
    pub(in crate::local) fn sleep(&self, _may_block: MayBlock) -> bool {
        let mut worker = self.worker.lock();
        while !worker.is_woken && !worker.is_stopped {
            self.changed.wait(&mut worker);
        }
        worker.is_woken = false;
        !worker.is_stopped
    }
}
