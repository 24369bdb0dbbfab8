//! Runs a changefeed in its own task.

use super::{Changefeed, ChangefeedError, ChangefeedFigures};
use crate::helper_task::HelperTask;
use parking_lot::Mutex;
use prombus::HandlerFailure;
use std::sync::Arc;

impl Changefeed {
    /// Runs the feed in a task until [`ChangefeedHandle::stop`] is called or an error occurs.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn(self) -> ChangefeedHandle {
        let (figures, name) = (Arc::clone(&self.figures), self.options.name.clone());
        let task = HelperTask::spawn(Arc::clone(&self.failures), |shutdown| self.run_until(shutdown));
        ChangefeedHandle { task, figures, name }
    }
}

/// A changefeed that runs in a task. Dropping the handle does not stop the feed.
#[derive(Debug)]
pub struct ChangefeedHandle {
    task: HelperTask<ChangefeedError>,
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

    /// Calls a function for each failure; see [`Changefeed::on_error`].
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.task.failures.on_error(callback);
    }

    /// The last failure, which is also the reason why a feed that has ended did so; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.task.failures.last_error()
    }

    /// Whether the feed has ended with an error.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Finishes the current batch (or gives it up if the server or the bus is unreachable), and stops.
    ///
    /// # Errors
    /// The error that ended the feed before this call or during the current batch, if any.
    pub async fn stop(self) -> Result<(), ChangefeedError> {
        self.task.stop().await
    }
}
