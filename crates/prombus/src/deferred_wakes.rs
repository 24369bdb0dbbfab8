//! Defers the calls of wakers until no lock is held. An executor may poll or drop a task inside the call of its waker, and the
//! task may call this crate again, which would deadlock. Code that calls an engine while it holds a lock creates a
//! [`DeferredWakes`] before it takes the lock, because the engine may call back and wake tasks.

use std::cell::RefCell;
use std::task::Waker;

thread_local! {
    static DEFERRED: RefCell<Deferred> = const { RefCell::new(Deferred { depth: 0, wakers: Vec::new() }) };
}

struct Deferred {
    depth: u32,
    wakers: Vec<Waker>,
}

/// While a thread has a value of this type, [`wake`] on this thread does not call wakers. They are called when the thread drops
/// its last such value.
pub(crate) struct DeferredWakes(());

impl DeferredWakes {
    pub(crate) fn enter() -> Self {
        DEFERRED.with_borrow_mut(|deferred| deferred.depth += 1);
        Self(())
    }
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        let wakers = DEFERRED.with_borrow_mut(|deferred| {
            deferred.depth -= 1;
            if deferred.depth == 0 { std::mem::take(&mut deferred.wakers) } else { Vec::new() }
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Calls a waker, either now or when the last [`DeferredWakes`] of this thread is dropped.
pub(crate) fn wake(waker: Waker) {
    let now = DEFERRED.with_borrow_mut(|deferred| {
        if deferred.depth == 0 {
            return Some(waker);
        }
        deferred.wakers.push(waker);
        None
    });
    if let Some(waker) = now {
        waker.wake();
    }
}
