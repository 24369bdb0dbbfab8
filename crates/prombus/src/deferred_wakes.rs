//! Calls wakers only when no lock is held: an executor may poll or drop a task inside the call, and that may re-enter this crate.
//! Code that holds a lock while an engine may call back keeps a [`DeferredWakes`] in scope, created before it takes the lock.

use std::cell::RefCell;
use std::task::Waker;

thread_local! {
    static DEFERRED: RefCell<Deferred> = const { RefCell::new(Deferred { depth: 0, wakers: Vec::new() }) };
}

struct Deferred {
    depth: u32,
    wakers: Vec<Waker>,
}

/// While one of these exists, the wakers of this thread are deferred. They are called when the last one is dropped.
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
