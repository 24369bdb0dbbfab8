//! A changefeed that runs by itself.

use super::{Changefeed, ChangefeedError, ChangefeedFigures};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

impl Changefeed {
    /// Runs in a task, until [`ChangefeedHandle::stop`] or an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(self) -> ChangefeedHandle {
        let (stop, stopped) = oneshot::channel::<()>();
        let (figures, name) = (Arc::clone(&self.figures), self.options.name.clone());
        let named = name.clone();
        let task = tokio::spawn(async move {
            let shutdown = async {
                // A handle that is dropped stops nothing.
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

/// A changefeed at work in a task. Dropping this changes nothing.
#[derive(Debug)]
pub struct ChangefeedHandle {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), ChangefeedError>>,
    figures: Arc<Mutex<ChangefeedFigures>>,
    name: String,
}

impl ChangefeedHandle {
    /// What it did so far, and how it is.
    pub fn figures(&self) -> ChangefeedFigures {
        self.figures.lock().clone()
    }

    /// The figures in the text format of Prometheus.
    pub fn to_prometheus(&self) -> String {
        self.figures().to_prometheus(&self.name)
    }

    /// Whether it has ended by an error.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it. A batch that is under way may be published again by the next start, which adds nothing.
    ///
    /// # Errors
    /// Why it had ended before, if it had.
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
