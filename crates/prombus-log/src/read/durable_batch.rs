//! The number of the newest durable batch, and the threads that wait for a batch to become durable.

use crate::error::Unavailable;
use crate::failed_fsync::WriteFailure;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the newest durable batch, and the threads that wait for a batch to become durable.
#[derive(Default)]
pub(crate) struct DurableBatch {
    /// The number of the newest durable batch.
    batch: AtomicU64,
    /// Used with `changed`.
    lock: Mutex<()>,
    changed: Condvar,
}

impl DurableBatch {
    pub(crate) fn new(batch: u64) -> Self {
        Self { batch: AtomicU64::new(batch), ..Self::default() }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.batch.load(Ordering::Acquire)
    }

    /// Sets the newest durable batch and wakes all waiting threads.
    #[inline]
    pub(crate) fn advance(&self, batch: u64) {
        self.batch.store(batch, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    /// Waits until a batch is durable, or writing has failed.
    pub(crate) fn wait(&self, batch: u64, failure: &WriteFailure) -> Result<(), Unavailable> {
        if self.get() >= batch {
            return Ok(());
        }
        let mut guard = self.lock.lock();
        while self.get() < batch {
            failure.check()?;
            self.changed.wait(&mut guard);
        }
        Ok(())
    }
}
