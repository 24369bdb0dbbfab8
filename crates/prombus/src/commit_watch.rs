//! Tracks the newest durable commit and wakes the futures that wait for a commit. Also records whether the bus is open, and
//! whether its engine can commit.

use crate::deferred_wakes::wake;
use crate::error::Unavailable;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// The number of the newest durable commit, and the futures that wait for a commit.
#[derive(Debug, Default)]
pub(crate) struct CommitWatch {
    durable: AtomicU64,
    waiters: Mutex<Vec<(u64, Waker)>>,
    /// The wakers of callers whose append found the engine's queue full.
    room: Mutex<Vec<Waker>>,
    wants_room: AtomicBool,
    failed: OnceLock<Unavailable>,
    /// Notified when `failed` is set.
    has_failed: Notify,
    /// Set when the engine has been suspended (unable to commit) for `engine_wait_ms`. Until the engine resumes, waiters
    /// fail with this reason.
    suspended: Mutex<Option<Unavailable>>,
    is_closed: AtomicBool,
}

impl CommitWatch {
    pub(crate) fn advance(&self, commit: u64) {
        self.durable.fetch_max(commit, Ordering::SeqCst);
        let mut woken = Vec::new();
        let mut waiters = self.waiters.lock();
        if waiters.is_empty() {
            return;
        }
        let mut at = 0;
        while at < waiters.len() {
            if waiters[at].0 <= commit {
                woken.push(waiters.swap_remove(at).1);
            } else {
                at += 1;
            }
        }
        drop(waiters);
        woken.into_iter().for_each(wake);
    }

    /// Marks the bus as closed, so that new operations are refused. Returns whether it was already closed.
    pub(crate) fn set_closed(&self) -> bool {
        self.is_closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn check_open(&self) -> Result<(), Unavailable> {
        if self.is_closed() { Err(Unavailable::Closed) } else { Ok(()) }
    }

    /// Makes all present and later waiters fail with this reason, until [`resume`](Self::resume) is called.
    pub(crate) fn suspend(&self, reason: Unavailable) {
        *self.suspended.lock() = Some(reason);
        self.wake_all();
    }

    /// Ends the suspension: later waiters wait instead of failing.
    pub(crate) fn resume(&self) {
        *self.suspended.lock() = None;
    }

    pub(crate) fn suspended(&self) -> Option<Unavailable> {
        self.suspended.lock().clone()
    }

    fn wake_all(&self) {
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.into_iter().for_each(|(_, waker)| wake(waker));
        self.wants_room.store(true, Ordering::SeqCst);
        self.room();
    }

    pub(crate) fn room(&self) {
        if self.wants_room.swap(false, Ordering::SeqCst) {
            let woken = std::mem::take(&mut *self.room.lock());
            woken.into_iter().for_each(wake);
        }
    }

    pub(crate) fn fail(&self, reason: Unavailable) {
        let _ = self.failed.set(reason);
        self.has_failed.notify_waiters();
        self.wake_all();
    }

    /// Resolves when the engine has permanently stopped committing, with the reason.
    pub(crate) async fn stopped(&self) -> Unavailable {
        loop {
            let has_failed = self.has_failed.notified();
            if let Some(reason) = self.failed.get() {
                return reason.clone();
            }
            has_failed.await;
        }
    }

    pub(crate) fn unavailable(&self) -> Option<&Unavailable> {
        self.failed.get()
    }

    /// Ready when the commit is durable. Fails if the engine has stopped, or is suspended at present; after a suspension
    /// the commit may still become durable.
    pub(crate) fn poll_durable(
        &self,
        commit: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Unavailable>> {
        if self.durable.load(Ordering::SeqCst) >= commit {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = self.waiters.lock();
        // Checked again under the lock: `advance` raises `durable` before it takes the lock, so it does not wake a waiter
        // that registers afterwards.
        if self.durable.load(Ordering::SeqCst) >= commit {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = self.failed.get().cloned().or_else(|| self.suspended()) {
            return Poll::Ready(Err(reason));
        }
        let waker = context.waker();
        let is_known = |(known, other): &(u64, Waker)| *known == commit && other.will_wake(waker);
        if !waiters.iter().rev().take(8).any(is_known) {
            waiters.push((commit, waker.clone()));
        }
        Poll::Pending
    }

    /// Registers the caller to be woken when the engine's queue may have room. The caller must try its append once more
    /// afterwards, because room that appeared before the registration does not wake it.
    pub(crate) fn register_for_room(&self, context: &Context<'_>) {
        let mut room = self.room.lock();
        if !room.iter().rev().take(8).any(|other| other.will_wake(context.waker())) {
            room.push(context.waker().clone());
        }
        drop(room);
        self.wants_room.store(true, Ordering::SeqCst);
    }
}
