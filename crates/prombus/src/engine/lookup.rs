//! The result type of queries to an engine, which may have to wait for a disk or a network.

use super::may_block::MayBlock;
use crate::error::ReadError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// The result of an engine query, available at once or later.
#[must_use = "a lookup does nothing unless it is awaited"]
pub struct Lookup<T>(LookupState<T>);

type Work<T> = Box<dyn FnOnce() -> Result<T, ReadError> + Send>;

enum LookupState<T> {
    /// `None` after the result was taken.
    Ready(Option<Result<T, ReadError>>),
    /// The work has not started. The caller that waits for the result decides which thread does the work.
    Deferred(Work<T>),
    Pending(oneshot::Receiver<Result<T, ReadError>>),
}

impl<T> Lookup<T> {
    /// A result that is already known.
    pub fn ready(answer: Result<T, ReadError>) -> Self {
        Self(LookupState::Ready(Some(answer)))
    }

    /// A result that is sent later, through the returned sender.
    pub fn pending() -> (oneshot::Sender<Result<T, ReadError>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(LookupState::Pending(receiver)))
    }

    /// A result for which `work` must read a lot. [`wait`](Self::wait) runs `work` on the calling thread. If the lookup is polled
    /// instead, the first poll starts `work` on one of the runtime's blocking threads; outside a runtime the poll runs `work`
    /// itself.
    pub fn on_blocking_thread(work: impl FnOnce() -> Result<T, ReadError> + Send + 'static) -> Self {
        Self(LookupState::Deferred(Box::new(work)))
    }

    /// Waits for the result on a thread that may be blocked.
    ///
    /// # Errors
    /// The error of the engine.
    pub fn wait(self, _may_block: MayBlock) -> Result<T, ReadError> {
        match self.0 {
            LookupState::Ready(answer) => answer.unwrap_or_else(|| Err(no_answer())),
            LookupState::Deferred(work) => work(),
            LookupState::Pending(receiver) => receiver.blocking_recv().unwrap_or_else(|_| Err(no_answer())),
        }
    }
}

fn no_answer() -> ReadError {
    ReadError::Failed("the engine returned no result".to_owned())
}

/// Starts work on one of the runtime's blocking threads.
fn start<T: Send + 'static>(work: Work<T>) -> oneshot::Receiver<Result<T, ReadError>> {
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        // The caller may have stopped waiting.
        let _ = sender.send(work());
    });
    receiver
}

impl<T> Unpin for Lookup<T> {}

impl<T: Send + 'static> Future for Lookup<T> {
    type Output = Result<T, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut receiver = match std::mem::replace(&mut self.0, LookupState::Ready(None)) {
            LookupState::Ready(answer) => return Poll::Ready(answer.unwrap_or_else(|| Err(no_answer()))),
            LookupState::Deferred(work) if MayBlock::known_here().is_some() => return Poll::Ready(work()),
            LookupState::Deferred(work) => start(work),
            LookupState::Pending(receiver) => receiver,
        };
        let answered = Pin::new(&mut receiver).poll(context);
        if answered.is_pending() {
            self.0 = LookupState::Pending(receiver);
        }
        Poll::Ready(ready!(answered).unwrap_or_else(|_| Err(no_answer())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A thread that may be blocked does the work itself. If it waited for another thread, a pool whose threads all wait would
    /// deadlock.
    #[test]
    fn waiting_for_a_deferred_lookup_needs_no_second_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        let runtime = runtime.expect("a runtime");
        let (sender, receiver) = mpsc::channel();
        runtime.spawn_blocking(move || {
            let lookup = Lookup::on_blocking_thread(|| Ok(7));
            sender.send(lookup.wait(MayBlock::on_this_thread()))
        });
        let answer = receiver.recv_timeout(Duration::from_secs(10));
        runtime.shutdown_background();
        assert_eq!(answer.expect("the lookup ends without a second thread"), Ok(7));
    }

    #[test]
    fn polling_a_deferred_lookup_runs_it_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let lookup = Lookup::on_blocking_thread(|| Ok(std::thread::current().id()));
        let worked_on = runtime.block_on(lookup).expect("a result");
        assert_ne!(worked_on, std::thread::current().id());
    }
}
