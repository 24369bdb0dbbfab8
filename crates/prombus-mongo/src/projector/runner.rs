//! Runs a projector in its own task.

use super::{MongoProjection, MongoProjector, MongoProjectorError, MongoProjectorFigures};
use crate::helper_task::HelperTask;
use parking_lot::Mutex;
use prombus::HandlerFailure;
use std::sync::Arc;

impl<P: MongoProjection> MongoProjector<P> {
    /// Folds events until `shutdown` resolves or the bus is closed. After `shutdown`, the current batch is finished, or given up if the
    /// database is unreachable, and the projector leaves the group.
    ///
    /// # Errors
    /// See [`MongoProjectorError`].
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) -> Result<(), MongoProjectorError> {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let deliveries = tokio::select! {
                biased;
                () = &mut shutdown => break,
                deliveries = self.subscription.next_batch() => deliveries.map_err(super::pull_error),
            };
            let applied = match deliveries {
                Ok(deliveries) => {
                    let figures = Arc::clone(&self.figures);
                    let apply = self.apply(&deliveries);
                    let stop = async {
                        (&mut shutdown).await;
                        // The current batch may finish, unless it waits for an unreachable database.
                        while figures.lock().trouble.is_none() {
                            tokio::time::sleep(super::RETRY_AFTER).await;
                        }
                    };
                    tokio::select! {
                        biased;
                        applied = apply => applied,
                        () = stop => break,
                    }
                }
                Err(error) => Err(error),
            };
            match applied {
                Ok(()) => {}
                Err(error) if error.is_closed() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let _ = self.subscription.unsubscribe().await;
        Ok(())
    }

    /// Runs the projector in a task until [`MongoProjectorHandle::stop`] is called, the bus is closed, or an error occurs.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn(self) -> MongoProjectorHandle {
        let figures = Arc::clone(&self.figures);
        let (topic, group) = (self.options.topic.clone(), self.options.group.clone());
        let task = HelperTask::spawn(Arc::clone(&self.failures), |shutdown| self.run_until(shutdown));
        MongoProjectorHandle { task, figures, topic, group }
    }
}

/// A projector that runs in a task. Dropping the handle does not stop the projector: it then runs until the bus is closed or an error
/// occurs.
#[derive(Debug)]
pub struct MongoProjectorHandle {
    task: HelperTask<MongoProjectorError>,
    figures: Arc<Mutex<MongoProjectorFigures>>,
    topic: String,
    group: String,
}

impl MongoProjectorHandle {
    /// The counters and the current state of the projector.
    pub fn figures(&self) -> MongoProjectorFigures {
        self.figures.lock().clone()
    }

    /// The figures in the Prometheus text format.
    pub fn to_prometheus(&self) -> String {
        self.figures().to_prometheus(&self.topic, &self.group)
    }

    /// Calls a function for each failure; see [`MongoProjector::on_error`].
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.task.failures.on_error(callback);
    }

    /// The last failure, which is also the reason why a projector that has ended did so; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.task.failures.last_error()
    }

    /// Whether the projector has ended, with an error or because the bus was closed.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Takes no more events, finishes the current batch (or gives it up if the database is unreachable), and stops.
    ///
    /// # Errors
    /// The error that ended the projector before this call or during the current batch, if any.
    pub async fn stop(self) -> Result<(), MongoProjectorError> {
        self.task.stop().await
    }
}
