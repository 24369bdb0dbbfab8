//! The signal that the gateway shuts down, for everything that waits.

use tokio::sync::watch;

/// Whether the gateway shuts down.
#[derive(Clone, Debug)]
pub(crate) struct Stopping {
    receiver: watch::Receiver<bool>,
}

impl Stopping {
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self { receiver })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.receiver.borrow()
    }

    /// Resolves when the shutdown begins.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.receiver.clone();
        // The sender lives as long as the server; when it is gone, everything is.
        let _ = receiver.wait_for(|&is_stopping| is_stopping).await;
    }
}
