//! Runs a projector: folds events as they arrive, and ticks in between.

use super::{Projection, Projector, ProjectorError, ProjectorFigures};
use crate::consume::told_to_stop;
use crate::error::{GroupError, with_causes};
use crate::failure_log::FailureLog;
use parking_lot::Mutex;
use prombus_protocol::{AfterFailure, HandlerFailure};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// The next step of the run loop.
enum NextStep {
    /// The caller requested a stop.
    Stop,
    /// A tick is due.
    Tick,
    /// Events arrived, or pulling them failed.
    Events(Result<crate::subscribe::Deliveries, GroupError>),
}

impl<P: Projection> Projector<P> {
    /// Folds and ticks until `shutdown` resolves or the bus is closed, then leaves the group. The current batch is finished
    /// first.
    ///
    /// Until all events that existed when the projector was opened are folded, it ticks only when no event is available.
    /// Otherwise a tick could mark a state as stale although newer events of its key exist.
    ///
    /// # Errors
    /// See [`ProjectorError`].
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) -> Result<(), ProjectorError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut ticks = self.settings.tick_every.map(tokio::time::interval);
        if let Some(ticks) = &mut ticks {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            let is_behind = self.position.map_or(0, |position| position.seq) < self.end_at_open;
            let tick = async {
                match &mut ticks {
                    Some(ticks) => drop(ticks.tick().await),
                    None => std::future::pending().await,
                }
            };
            let events = self.subscription.next_batch();
            // While catching up, available events come before ticks. If there are none, the projector has caught up as far as
            // possible.
            let turn = if is_behind {
                tokio::select! {
                    biased;
                    () = &mut shutdown => NextStep::Stop,
                    events = events => NextStep::Events(events),
                    () = tick => NextStep::Tick,
                }
            } else {
                tokio::select! {
                    biased;
                    () = &mut shutdown => NextStep::Stop,
                    () = tick => NextStep::Tick,
                    events = events => NextStep::Events(events),
                }
            };
            let done = match turn {
                NextStep::Stop => break,
                NextStep::Tick => self.tick().await,
                NextStep::Events(Ok(deliveries)) => self.apply(&deliveries).await,
                NextStep::Events(Err(error)) => Err(super::pull_error(error)),
            };
            match done {
                Ok(()) => {}
                Err(error) if error.is_closed() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let _ = self.subscription.unsubscribe().await;
        Ok(())
    }

    /// Runs in a task, until [`ProjectorHandle::stop`] or the bus is closed.
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn spawn(self) -> ProjectorHandle {
        let (stop, mut stopped) = watch::channel(false);
        let figures = Arc::clone(&self.figures);
        let failures = Arc::clone(&self.failures);
        let reports = Arc::clone(&failures);
        let task = tokio::spawn(async move {
            let ran = self.run_until(async { told_to_stop(&mut stopped).await }).await;
            if let Err(error) = &ran {
                reports.report(&HandlerFailure::general(with_causes(error), AfterFailure::Stop));
            }
            ran
        });
        ProjectorHandle { stop, task, figures, failures }
    }
}

/// The handle of a projector that runs in a task. Dropping it does not stop the projector: it runs until the bus is closed.
#[derive(Debug)]
pub struct ProjectorHandle {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Result<(), ProjectorError>>,
    figures: Arc<Mutex<ProjectorFigures>>,
    failures: Arc<FailureLog>,
}

impl ProjectorHandle {
    /// The counters of the projector.
    pub fn figures(&self) -> ProjectorFigures {
        *self.figures.lock()
    }

    /// Calls a function for each failure; see [`Projector::on_error`].
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure, which is also the reason why a projector that has ended did so; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Whether the projector has ended, with an error or because the bus was closed.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Takes no more events, finishes the current batch, and stops.
    ///
    /// # Errors
    /// The error that had stopped the projector before, if any.
    pub async fn stop(self) -> Result<(), ProjectorError> {
        let _ = self.stop.send(true);
        match self.task.await {
            Ok(ran) => ran,
            Err(error) => {
                tracing::error!("the task of a projector ended early: {error}");
                Ok(())
            }
        }
    }
}
