//! Answers that may take time.

use super::may_block::MayBlock;
use crate::error::ReadError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// The answer to a question to an engine: there at once, or later.
#[must_use = "a lookup does nothing unless it is awaited"]
pub struct Lookup<T>(LookupState<T>);

type Work<T> = Box<dyn FnOnce() -> Result<T, ReadError> + Send>;

enum LookupState<T> {
    /// `None` after the answer was taken.
    Ready(Option<Result<T, ReadError>>),
    /// Not begun: the one who waits decides which thread works it out.
    Deferred(Work<T>),
    Pending(oneshot::Receiver<Result<T, ReadError>>),
}

impl<T> Lookup<T> {
    /// An answer that is there.
    pub fn ready(answer: Result<T, ReadError>) -> Self {
        Self(LookupState::Ready(Some(answer)))
    }

    /// An answer that whoever has the sender gives later.
    pub fn pending() -> (oneshot::Sender<Result<T, ReadError>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(LookupState::Pending(receiver)))
    }

    /// An answer that takes a lot of reading. [`wait`](Self::wait) works it out on the calling thread. If it is polled, the first
    /// poll hands it to one of the runtime's blocking threads; outside of a runtime it is worked out in the poll.
    pub fn on_blocking_thread(work: impl FnOnce() -> Result<T, ReadError> + Send + 'static) -> Self {
        Self(LookupState::Deferred(Box::new(work)))
    }

    /// Waits for the answer on a thread that may be blocked.
    ///
    /// # Errors
    /// The engine's.
    pub fn wait(self, _may_block: MayBlock) -> Result<T, ReadError> {
        match self.0 {
            LookupState::Ready(answer) => answer.unwrap_or_else(|| Err(no_answer())),
            LookupState::Deferred(work) => work(),
            LookupState::Pending(receiver) => receiver.blocking_recv().unwrap_or_else(|_| Err(no_answer())),
        }
    }
}

fn no_answer() -> ReadError {
    ReadError::Failed("the engine gave no answer".to_owned())
}

/// Starts work on one of the runtime's blocking threads.
fn start<T: Send + 'static>(work: Work<T>) -> oneshot::Receiver<Result<T, ReadError>> {
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        // The asker may have stopped waiting.
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

    /// A thread that may be blocked works it out itself: if it waited for another one, a pool whose threads all wait would stand
    /// still.
    #[test]
    fn a_deferred_answer_that_is_waited_for_needs_no_second_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        let runtime = runtime.expect("a runtime");
        let (sender, receiver) = mpsc::channel();
        runtime.spawn_blocking(move || {
            let lookup = Lookup::on_blocking_thread(|| Ok(7));
            sender.send(lookup.wait(MayBlock::on_this_thread()))
        });
        let answer = receiver.recv_timeout(Duration::from_secs(10));
        runtime.shutdown_background();
        assert_eq!(answer.expect("it waits for a thread that never comes"), Ok(7));
    }

    #[test]
    fn a_deferred_answer_that_is_polled_is_worked_out_on_another_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let lookup = Lookup::on_blocking_thread(|| Ok(std::thread::current().id()));
        let worked_on = runtime.block_on(lookup).expect("answers");
        assert_ne!(worked_on, std::thread::current().id());
    }
}
