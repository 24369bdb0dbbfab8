//! Who waits for a commit: one number that rises, and wakers.

use crate::error::Unavailable;
use crate::local::quiet::wake;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// The newest durable batch, for those who wait in a future.
#[derive(Debug, Default)]
pub struct CommitWatch {
    durable: AtomicU64,
    waiters: Mutex<Vec<(u64, Waker)>>,
    /// Appends that found the queue full.
    room: Mutex<Vec<Waker>>,
    wants_room: AtomicBool,
    failed: OnceLock<Unavailable>,
}

impl CommitWatch {
    pub(crate) fn advance(&self, batch: u64) {
        self.durable.fetch_max(batch, Ordering::SeqCst);
        let mut woken = Vec::new();
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        let mut at = 0;
        while at < waiters.len() {
            if waiters[at].0 <= batch {
                woken.push(waiters.swap_remove(at).1);
            } else {
                at += 1;
            }
        }
        drop(waiters);
        woken.into_iter().for_each(wake);
    }

    pub(crate) fn room(&self) {
        if self.wants_room.swap(false, Ordering::SeqCst) {
            let woken = std::mem::take(&mut *self.room.lock());
            woken.into_iter().for_each(wake);
        }
    }

    pub(crate) fn fail(&self, reason: Unavailable) {
        let _ = self.failed.set(reason);
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.into_iter().for_each(|(_, waker)| wake(waker));
        self.wants_room.store(true, Ordering::SeqCst);
        self.room();
    }

    pub(crate) fn unavailable(&self) -> Option<&Unavailable> {
        self.failed.get()
    }

    /// Ready when the batch is durable, or never will be.
    pub(crate) fn poll_durable(
        &self,
        batch: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Unavailable>> {
        if self.durable.load(Ordering::SeqCst) >= batch {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = self.waiters.lock();
        // Again under the lock: whoever advances takes it after the number.
        if self.durable.load(Ordering::SeqCst) >= batch {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = self.failed.get() {
            return Poll::Ready(Err(reason.clone()));
        }
        let waker = context.waker();
        let is_known = |(known, other): &(u64, Waker)| *known == batch && other.will_wake(waker);
        if !waiters.iter().rev().take(8).any(is_known) {
            waiters.push((batch, waker.clone()));
        }
        Poll::Pending
    }

    /// Wakes the caller when there may be room. The caller registers first and then tries once more.
    pub(crate) fn register_for_room(&self, context: &Context<'_>) {
        let mut room = self.room.lock();
        if !room.iter().rev().take(8).any(|other| other.will_wake(context.waker())) {
            room.push(context.waker().clone());
        }
        drop(room);
        self.wants_room.store(true, Ordering::SeqCst);
    }
}
