//! The handle of the task that makes this process lead or follow.

use super::options::LeadershipOptions;
use super::role::{LeadershipFigures, Role};
use super::runner::{Ended, Runner, StopError};
use crate::bus::BusBuilder;
use crate::clock::Clock;
use crate::engine::{LeaseError, SharedStore};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The handle of the task that takes part in leading a shared store. The process leads while it holds the leader
/// lease, and follows otherwise.
///
/// If the handle is dropped without a call of [`stop`](Self::stop), the task still closes the bus and releases the
/// lease, but errors are not reported.
pub struct Leadership {
    roles: watch::Receiver<Role>,
    figures: LeadershipFigures,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Ended>,
}

impl Leadership {
    /// Starts the task. The process follows at first, and leads when the lease is free. `builder` builds a bus for
    /// each term in which this process leads.
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn start(
        store: Arc<dyn SharedStore>,
        builder: BusBuilder,
        options: LeadershipOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::spawn(Runner::new(store, builder, options, clock, false))
    }

    /// Like [`start`](Self::start), but the task ends after its first term, or when the engine cannot be opened.
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

    /// A receiver of the current role of this process, and of its changes.
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.roles.clone()
    }

    /// Figures for operators: the number of takeovers, and the term.
    pub fn figures(&self) -> LeadershipFigures {
        self.figures.clone()
    }

    /// Stops the task. If this process leads, the task first closes the bus, which makes pending writes durable, and
    /// then releases the lease.
    ///
    /// # Errors
    /// See [`StopError`].
    pub async fn stop(self) -> Result<(), StopError> {
        self.end().await.stopped
    }

    pub(super) async fn end(self) -> Ended {
        // The task may have ended already.
        let _ = self.stop.send(());
        self.task.await.unwrap_or_else(|error| {
            let error = StopError::Release(LeaseError(format!("the leadership task ended early: {error}")));
            Ended { stopped: Err(error), open_error: None }
        })
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Leadership({:?})", *self.roles.borrow())
    }
}
