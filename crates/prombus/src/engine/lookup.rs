//! Answers that may take time, and the proof that a thread may be blocked.

use crate::error::ReadError;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Proof that the thread which holds it may be blocked: it is not a thread of an async runtime. A function that may block asks
/// for one, so a caller on an async thread cannot reach it by accident.
#[derive(Clone, Copy, Debug)]
pub struct MayBlock(());

impl MayBlock {
    /// Declares that this thread may be blocked: it is a thread of the caller's own, or one of the runtime's blocking threads.
    pub fn on_this_thread() -> Self {
        Self(())
    }
}

/// Runs something that may block on a thread that may be blocked. Outside of a runtime that is the calling thread.
///
/// # Errors
/// Those of `work`; a panic in it becomes [`ReadError::Failed`].
pub(crate) async fn off_async_threads<T, E>(
    work: impl FnOnce(MayBlock) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ReadError> + Send + 'static,
{
    if tokio::runtime::Handle::try_current().is_err() {
        return work(MayBlock(()));
    }
    let done = tokio::task::spawn_blocking(move || work(MayBlock(()))).await;
    done.unwrap_or_else(|error| Err(ReadError::Failed(format!("reading panicked: {error}")).into()))
}

/// The answer to a question to an engine: there at once, or later.
#[must_use = "a lookup does nothing unless it is awaited"]
pub struct Lookup<T>(LookupState<T>);

enum LookupState<T> {
    Ready(Option<Result<T, ReadError>>),
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

    /// An answer that takes a lot of reading: it is worked out on one of the runtime's blocking threads. Outside of a runtime it
    /// is worked out at once.
    pub fn on_blocking_thread(work: impl FnOnce() -> Result<T, ReadError> + Send + 'static) -> Self
    where
        T: Send + 'static,
    {
        if tokio::runtime::Handle::try_current().is_err() {
            return Self::ready(work());
        }
        let (sender, lookup) = Self::pending();
        tokio::task::spawn_blocking(move || {
            // The asker may have stopped waiting.
            let _ = sender.send(work());
        });
        lookup
    }

    /// Waits for the answer on a thread that may be blocked.
    ///
    /// # Errors
    /// The engine's.
    pub fn wait(self, _may_block: MayBlock) -> Result<T, ReadError> {
        match self.0 {
            LookupState::Ready(answer) => answer.unwrap_or_else(|| Err(no_answer())),
            LookupState::Pending(receiver) => receiver.blocking_recv().unwrap_or_else(|_| Err(no_answer())),
        }
    }
}

fn no_answer() -> ReadError {
    ReadError::Failed("the engine gave no answer".to_owned())
}

impl<T> Unpin for Lookup<T> {}

impl<T> Future for Lookup<T> {
    type Output = Result<T, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            LookupState::Ready(answer) => Poll::Ready(answer.take().unwrap_or_else(|| Err(no_answer()))),
            LookupState::Pending(receiver) => {
                let answer = std::task::ready!(Pin::new(receiver).poll(context));
                Poll::Ready(answer.unwrap_or_else(|_| Err(no_answer())))
            }
        }
    }
}
