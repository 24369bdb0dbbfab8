//! The handle of a process's leadership.

use super::options::LeadershipOptions;
use super::role::{LeadershipFigures, Role};
use super::runner::{Ended, Runner, StopError};
use crate::bus::BusBuilder;
use crate::clock::Clock;
use crate::engine::{LeaseError, SharedStore};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// A process that takes part in leading a shared store: it follows or leads, as the lease decides.
///
/// Dropped without [`stop`](Self::stop) it still closes the bus and gives the lease back, but nobody hears how that went.
pub struct Leadership {
    roles: watch::Receiver<Role>,
    figures: LeadershipFigures,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Ended>,
}

impl Leadership {
    /// Starts to follow, and to lead when the lease is free. The builder makes the bus of each term that this process leads.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        store: Arc<dyn SharedStore>,
        builder: BusBuilder,
        options: LeadershipOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::spawn(Runner::new(store, builder, options, clock, false))
    }

    /// Like [`start`](Self::start), but it ends with its first term, or when the engine cannot be opened.
    pub(super) fn start_single(
        store: Arc<dyn SharedStore>,
        builder: BusBuilder,
        options: LeadershipOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::spawn(Runner::new(store, builder, options, clock, true))
    }

    fn spawn(runner: Runner) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (roles, figures) = (runner.roles(), runner.figures());
        Self { roles, figures, stop, task: tokio::spawn(runner.run(stopped)) }
    }

    /// What this process does, now and from now on.
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.roles.clone()
    }

    /// Takeovers and the term.
    pub fn figures(&self) -> LeadershipFigures {
        self.figures.clone()
    }

    /// Ends: if this process leads, the bus is closed, and everything that was answered is durable; then the lease is given back.
    ///
    /// # Errors
    /// See [`StopError`].
    pub async fn stop(self) -> Result<(), StopError> {
        self.end().await.stopped
    }

    pub(super) async fn end(self) -> Ended {
        // It may have ended.
        let _ = self.stop.send(());
        self.task.await.unwrap_or_else(|error| {
            let error = StopError::Release(LeaseError(format!("the runner ended: {error}")));
            Ended { stopped: Err(error), open_error: None }
        })
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Leadership({:?})", *self.roles.borrow())
    }
}
