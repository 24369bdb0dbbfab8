//! Wakers are called when no lock is held: an executor may poll or drop a task inside the call, and that may come back here.
//! Code that holds a lock while an engine may call back keeps a [`DeferredWakes`] around it, created before the lock.

use std::cell::RefCell;
use std::task::Waker;

thread_local! {
    static DEFERRED: RefCell<Deferred> = const { RefCell::new(Deferred { depth: 0, wakers: Vec::new() }) };
}

struct Deferred {
    depth: u32,
    wakers: Vec<Waker>,
}

/// While it lives, this thread's wakers are held back; when the last one is dropped, they are called.
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

/// Calls a waker, now or when the thread's [`DeferredWakes`] end.
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
