//! The proof that a thread may be blocked, and a function that moves work to such a thread.
//!
//! **Invariant:** work that runs on a thread that may be blocked never asks for a second such thread. The number of such threads
//! is limited: if all of them ran work that waits for another one, the process would deadlock.

use crate::error::ReadError;
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

thread_local! {
    /// Whether this thread runs [`MayBlock::block_on`].
    static IS_BLOCKING_ON: Cell<bool> = const { Cell::new(false) };
}

/// Proof that the current thread may be blocked: it is not a thread of an async runtime. A function that may block takes this
/// proof as an argument, so a caller on an async thread cannot call it by accident.
#[derive(Clone, Copy, Debug)]
pub struct MayBlock(());

impl MayBlock {
    /// Declares that this thread may be blocked: it is the caller's own thread, or one of the runtime's blocking threads.
    pub fn on_this_thread() -> Self {
        Self(())
    }

    /// Returns the proof if it can be determined that this thread may be blocked: it runs [`block_on`](Self::block_on), or does
    /// not belong to a runtime.
    pub(super) fn known_here() -> Option<Self> {
        let is_outside = || tokio::runtime::Handle::try_current().is_err();
        (IS_BLOCKING_ON.get() || is_outside()).then_some(Self(()))
    }

    /// Runs a future to completion on this thread, which sleeps while the future waits. Reads inside the future run on this
    /// thread as well.
    pub(crate) fn block_on<F: Future>(self, future: F) -> F::Output {
        let _scope = BlockingScope::enter();
        let wakeup =
            Arc::new(ThreadWakeup { thread: std::thread::current(), is_woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&wakeup));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            while !wakeup.is_woken.swap(false, Ordering::Acquire) {
                std::thread::park();
            }
        }
    }
}

/// Wakes a parked thread.
struct ThreadWakeup {
    thread: Thread,
    /// Set when the future may be polled again. `Thread::unpark` alone is not enough, because other code that parks this thread
    /// may consume the wake-up.
    is_woken: AtomicBool,
}

impl Wake for ThreadWakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Marks the thread while it runs [`MayBlock::block_on`].
struct BlockingScope {
    /// The value of `IS_BLOCKING_ON` outside this scope, which is restored at the end.
    was_blocking_on: bool,
}

impl BlockingScope {
    fn enter() -> Self {
        Self { was_blocking_on: IS_BLOCKING_ON.replace(true) }
    }
}

impl Drop for BlockingScope {
    fn drop(&mut self) {
        IS_BLOCKING_ON.set(self.was_blocking_on);
    }
}

/// Runs work that may block on a thread that may be blocked: the calling thread if it is known to be one, otherwise one of the
/// runtime's blocking threads.
///
/// # Errors
/// The errors of `work`; a panic in it becomes [`ReadError::Failed`].
pub(crate) async fn off_async_threads<T, E>(
    work: impl FnOnce(MayBlock) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ReadError> + Send + 'static,
{
    if let Some(may_block) = MayBlock::known_here() {
        return work(may_block);
    }
    let done = tokio::task::spawn_blocking(move || work(MayBlock(()))).await;
    done.unwrap_or_else(|error| Err(ReadError::Failed(format!("reading panicked: {error}")).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_blocked_thread_sleeps_until_its_future_is_woken() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let sending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            sender.send(7)
        });
        let mut polls = 0;
        let mut receiver = pin!(receiver);
        let received = MayBlock::on_this_thread().block_on(std::future::poll_fn(|context| {
            polls += 1;
            receiver.as_mut().poll(context)
        }));
        assert_eq!(received, Ok(7));
        assert!(polls <= 2, "the thread spins: {polls} polls");
        assert_eq!(sending.join().expect("no panic"), Ok(()));
    }

    #[test]
    fn work_on_a_blocking_thread_does_not_ask_for_another() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_time().build();
        let runtime = runtime.expect("a runtime");
        let nested = off_async_threads(|may_block| {
            may_block.block_on(off_async_threads(|_may_block| Ok::<_, ReadError>(7)))
        });
        let done = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), nested).await });
        runtime.shutdown_background();
        assert_eq!(done.expect("the work ends without a second thread"), Ok(7));
    }
}
