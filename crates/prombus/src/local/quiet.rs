//! Wakers are called when no lock is held: an executor may poll or drop a task right where its waker is called, and that may
//! come back here. Whoever holds a lock while a store may call back keeps a [`Quiet`] around it, made before the lock.

use std::cell::RefCell;
use std::task::Waker;

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { depth: 0, wakers: Vec::new() }) };
}

struct Kept {
    depth: u32,
    wakers: Vec<Waker>,
}

/// While it lives, this thread's wakers wait; when the last one goes, they are called.
pub(crate) struct Quiet(());

impl Quiet {
    pub(crate) fn enter() -> Self {
        KEPT.with_borrow_mut(|kept| kept.depth += 1);
        Self(())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let wakers = KEPT.with_borrow_mut(|kept| {
            kept.depth -= 1;
            if kept.depth == 0 { std::mem::take(&mut kept.wakers) } else { Vec::new() }
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Calls a waker, now or when it is safe.
pub(crate) fn wake(waker: Waker) {
    let now = KEPT.with_borrow_mut(|kept| {
        if kept.depth == 0 {
            return Some(waker);
        }
        kept.wakers.push(waker);
        None
    });
    if let Some(waker) = now {
        waker.wake();
    }
}
