//! A helper that runs in its own task until it is told to stop.

use prombus::{AfterFailure, FailureLog, HandlerFailure};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Resolves when the helper is to stop.
pub(crate) type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The task of a helper. Dropping this does not stop the helper.
#[derive(Debug)]
pub(crate) struct HelperTask<E> {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), E>>,
    /// The failures of the helper. An error that ends it is the last one.
    pub(crate) failures: Arc<FailureLog>,
}

impl<E: std::fmt::Display + Send + 'static> HelperTask<E> {
    /// Spawns `run`, which ends when its argument resolves.
    pub(crate) fn spawn<R>(failures: Arc<FailureLog>, run: impl FnOnce(Shutdown) -> R) -> Self
    where
        R: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let running = run(Box::pin(shutdown));
        let reports = Arc::clone(&failures);
        // In a task of its own, so that a panic in a function of the caller is reported too.
        let running = tokio::spawn(running);
        let task = tokio::spawn(async move {
            let ended = running.await;
            let why = match &ended {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic.to_string(),
            };
            reports.report(&HandlerFailure::general(why, AfterFailure::Stop));
            ended.unwrap_or(Ok(()))
        });
        Self { stop, task, failures }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Tells the helper to stop and waits until it has ended. The last of its failures says whether it had panicked.
    pub(crate) async fn stop(self) -> Result<(), E> {
        let _ = self.stop.send(());
        match self.task.await {
            Ok(ran) => ran,
            Err(error) => {
                tracing::error!("the task of a helper ended early: {error}");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_handle_does_not_stop_the_helper_and_stop_does() {
        let (sender, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let task = HelperTask::<String>::spawn(Arc::new(FailureLog::new("test")), |shutdown| async move {
            shutdown.await;
            drop(sender);
            Ok(())
        });
        assert!(!task.is_finished());
        task.stop().await.unwrap();
        assert_eq!(ended.recv().await, None);

        let (sender, mut running) = tokio::sync::mpsc::channel::<()>(1);
        drop(HelperTask::<String>::spawn(Arc::new(FailureLog::new("test")), |shutdown| async move {
            sender.send(()).await.unwrap();
            shutdown.await;
            drop(sender);
            Ok(())
        }));
        assert_eq!(running.recv().await, Some(()));
        tokio::task::yield_now().await;
        assert_eq!(running.try_recv(), Err(tokio::sync::mpsc::error::TryRecvError::Empty));
    }

    #[tokio::test]
    async fn the_error_that_ends_a_helper_is_its_last_error() {
        let failures = Arc::new(FailureLog::new("test"));
        let task = HelperTask::spawn(Arc::clone(&failures), |_| async { Err("gone".to_owned()) });
        assert_eq!(task.stop().await, Err("gone".to_owned()));
        assert_eq!(failures.last_error(), Some(HandlerFailure::general("gone", AfterFailure::Stop)));
    }

    #[tokio::test]
    async fn a_panic_that_ends_a_helper_is_its_last_error() {
        let failures = Arc::new(FailureLog::new("test"));
        let task = HelperTask::<String>::spawn(Arc::clone(&failures), |_| async { panic!("a bug in map") });
        assert_eq!(task.stop().await, Ok(()));
        let failure = failures.last_error().expect("the panic is reported");
        assert!(failure.error.contains("a bug in map") && failure.next == AfterFailure::Stop, "{failure}");
    }
}
