//! Runs a projector in its own task.

use super::{MongoProjection, MongoProjector, MongoProjectorError, MongoProjectorFigures};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

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
        let (stop, stopped) = oneshot::channel::<()>();
        let figures = Arc::clone(&self.figures);
        let (topic, group) = (self.options.topic.clone(), self.options.group.clone());
        let named = group.clone();
        let task = tokio::spawn(async move {
            let shutdown = async {
                // Dropping the handle does not stop the projector.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let ran = self.run_until(shutdown).await;
            if let Err(error) = &ran {
                tracing::error!("projector {named} ends: {error}");
            }
            ran
        });
        MongoProjectorHandle { stop, task, figures, topic, group }
    }
}

/// A projector that runs in a task. Dropping the handle does not stop the projector: it then runs until the bus is closed or an error
/// occurs.
#[derive(Debug)]
pub struct MongoProjectorHandle {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), MongoProjectorError>>,
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

    /// Whether the projector has ended, with an error or because the bus was closed.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Takes no more events, finishes the current batch (or gives it up if the database is unreachable), and stops.
    ///
    /// # Errors
    /// The error that ended the projector before this call or during the current batch, if any.
    pub async fn stop(self) -> Result<(), MongoProjectorError> {
        let _ = self.stop.send(());
        match self.task.await {
            Ok(ran) => ran,
            Err(error) => {
                tracing::error!("a projector's task ended early: {error}");
                Ok(())
            }
        }
    }
}
