//! How long a publish keeps trying while nothing is answered.

use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The time that is left. It starts again with every answer.
pub(crate) struct Patience {
    limit: Duration,
    answered_at: Instant,
}

impl Patience {
    /// Starts now. Zero means one attempt, which is bounded by the timeouts of the connection only.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, answered_at: Instant::now() }
    }

    /// Something was answered.
    pub(crate) fn answered(&mut self) {
        self.answered_at = Instant::now();
    }

    /// The time that is left until there must be an answer.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.answered_at.elapsed())
    }

    /// Waits for a step of an attempt. An error says that the patience ended first.
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
