//! The signal that the gateway stops, for everything that waits.

use tokio::sync::watch;

/// Why a gateway stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StopReason {
    /// The process ends.
    #[error("the gateway is shutting down")]
    Shutdown,
    /// Another gateway leads the store; this process continues as a follower.
    #[error("another gateway leads the store now")]
    Deposed,
}

/// Where the signal is given. When it is dropped, everything that waits resolves.
pub(crate) type StopSender = watch::Sender<Option<StopReason>>;

/// Whether the gateway stops.
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

    /// Why it stops, once it does.
    pub(crate) fn reason(&self) -> StopReason {
        self.receiver.borrow().unwrap_or(StopReason::Shutdown)
    }

    /// Resolves when the gateway begins to stop.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as the gateway serves; when it is gone, everything is.
        let _ = receiver.wait_for(Option::is_some).await;
    }
}
