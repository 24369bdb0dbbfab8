//! Runs a changefeed in its own task.

use super::{Changefeed, ChangefeedError, ChangefeedFigures};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Changefeed {
    /// Runs the feed in a task until [`ChangefeedHandle::stop`] is called or an error occurs.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn(self) -> ChangefeedHandle {
        let (stop, stopped) = oneshot::channel::<()>();
        let (figures, name) = (Arc::clone(&self.figures), self.options.name.clone());
        let named = name.clone();
        let task = tokio::spawn(async move {
            let shutdown = async {
                // Dropping the handle does not stop the feed.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let ran = self.run_until(shutdown).await;
            if let Err(error) = &ran {
                tracing::error!("changefeed {named} ends: {error}");
            }
            ran
        });
        ChangefeedHandle { stop, task, figures, name }
    }
}

/// A changefeed that runs in a task. Dropping the handle does not stop the feed.
#[derive(Debug)]
pub struct ChangefeedHandle {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ChangefeedError>>,
    figures: Arc<Mutex<ChangefeedFigures>>,
    name: String,
}

impl ChangefeedHandle {
    /// The counters and the current state of the feed.
    pub fn figures(&self) -> ChangefeedFigures {
        self.figures.lock().clone()
    }

    /// The figures in the Prometheus text format.
    pub fn to_prometheus(&self) -> String {
        self.figures().to_prometheus(&self.name)
    }

    /// Whether the feed has ended with an error.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops the feed. The next start may publish the current batch again, which adds no events.
    ///
    /// # Errors
    /// The error that ended the feed before this call, if any.
    pub async fn stop(self) -> Result<(), ChangefeedError> {
        let _ = self.stop.send(());
        match self.task.await {
            Ok(ran) => ran,
            Err(error) => {
                tracing::error!("a changefeed's task ended early: {error}");
                Ok(())
            }
        }
    }
}
