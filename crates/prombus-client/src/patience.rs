//! The patience of a publish: how long it keeps trying while the server does not respond.

use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The remaining time. It restarts with every response other than `unavailable` and `storage_full`.
pub(crate) struct Patience {
    /// The longest time without such a response.
    limit: Duration,
    /// When the time last restarted; at first, when the publish began.
    answered_at: Instant,
}

impl Patience {
    /// Starts now. Zero means one attempt, bounded only by the timeouts of the connection.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, answered_at: Instant::now() }
    }

    /// Restarts the time because a response was received.
    pub(crate) fn answered(&mut self) {
        self.answered_at = Instant::now();
    }

    /// How long until the patience ends, if no response arrives.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.answered_at.elapsed())
    }

    /// Waits for a step of an attempt. Fails if the patience ends first.
    pub(crate) async fn bound<T>(&self, step: impl Future<Output = T>) -> Result<T, String> {
        match self.answered_at.checked_add(self.limit).filter(|_| !self.limit.is_zero()) {
            Some(deadline) => timeout_at(deadline, step).await.map_err(|_| match self.limit.subsec_nanos() {
                0 => format!("no answer in {} s", self.limit.as_secs()),
                _ => format!("no answer in {:?}", self.limit),
            }),
            None => Ok(step.await),
        }
    }
}
