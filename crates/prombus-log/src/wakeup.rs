//! Wakes a background thread.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Wakes one thread, which then finds out what there is to do. Notifying it again before it has woken costs one atomic
/// load.
#[derive(Default)]
pub(crate) struct Wakeup {
    is_notified: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Wakeup {
    #[inline]
    pub(crate) fn notify(&self) {
        if !self.is_notified.load(Ordering::SeqCst) && !self.is_notified.swap(true, Ordering::SeqCst) {
            drop(self.lock.lock());
            self.wake.notify_one();
        }
    }

    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let mut guard = self.lock.lock();
        while !self.is_notified.swap(false, Ordering::SeqCst) {
            match timeout {
                None => self.wake.wait(&mut guard),
                Some(timeout) => {
                    if self.wake.wait_for(&mut guard, timeout).timed_out() {
                        return;
                    }
                }
            }
        }
    }
}
