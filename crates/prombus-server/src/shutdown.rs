//! The stop signal. Every task that may wait for long also waits for this signal, and ends when it is sent.

use tokio::sync::watch;

/// Why serving stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StopReason {
    /// The process ends.
    #[error("the server is shutting down")]
    Shutdown,
    /// Another gateway leads the store; this process continues as a follower.
    #[error("another gateway has become the leader of the store")]
    Deposed,
}

/// Sends the stop signal. Dropping the sender also wakes every task that waits for the signal.
pub(crate) type StopSender = watch::Sender<Option<StopReason>>;

/// Receives the stop signal.
#[derive(Clone, Debug)]
pub(crate) struct Stopping {
    receiver: watch::Receiver<Option<StopReason>>,
}

impl Stopping {
    pub(crate) fn new() -> (StopSender, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self { receiver })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.receiver.borrow().is_some()
    }

    /// Why serving stops. Meaningful only if [`is_stopping`](Self::is_stopping).
    pub(crate) fn reason(&self) -> StopReason {
        self.receiver.borrow().unwrap_or(StopReason::Shutdown)
    }

    /// Resolves when the stop signal is sent.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.receiver.clone();
        // An error means that the sender is dropped, which also ends serving.
        let _ = receiver.wait_for(Option::is_some).await;
    }
}
