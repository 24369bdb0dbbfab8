//! The work of a process for a term in which it holds the lease: opening the engine, leading, and closing the bus.
//! Only one of these is in progress at a time, so a process never has two buses open on a store.

use crate::box_future::BoxFuture;
use crate::bus::{Bus, BusBuilder};
use crate::clock::Clock;
use crate::engine::{SharedStore, Takeover};
use crate::error::{OpenError, Unavailable};
use crate::leasing_gate::LeasingGate;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The current work for a term.
pub(super) enum TermWork {
    Idle,
    Opening { term: u64, gate: Arc<LeasingGate>, task: JoinHandle<Result<Bus, OpenError>> },
    Leading { term: u64, gate: Arc<LeasingGate>, bus: Bus, stopped: BoxFuture<'static, Unavailable> },
    Closing { then: AfterClosing, task: JoinHandle<Result<(), Unavailable>> },
}

/// What to do when the bus is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterClosing {
    /// This process has lost the lease: follow, and take the lease again when it is free.
    Follow,
    /// This process still holds the lease, but cannot lead: release the lease, or let it expire if the close failed.
    GiveUp,
    /// The leadership of this process ends.
    Stop,
}

/// How a piece of work ended.
pub(super) enum WorkEvent {
    Opened(Result<Bus, OpenError>),
    Stopped(Unavailable),
    Closed(AfterClosing, Result<(), Unavailable>),
}

impl TermWork {
    /// Opens the engine and a bus over it.
    pub(super) fn open(
        store: &Arc<dyn SharedStore>,
        builder: &BusBuilder,
        clock: &Arc<dyn Clock>,
        takeover: Takeover,
    ) -> Self {
        let gate = Arc::new(LeasingGate::new(Arc::clone(clock)));
        let builder = builder.clone().clock(Arc::clone(clock)).leasing_gate(Arc::clone(&gate));
        let (store, clock) = (Arc::clone(store), Arc::clone(clock));
        let task = tokio::spawn(async move {
            let engine = store.lead(takeover, clock).await?;
            // Restoring the groups blocks the thread.
            let opened = tokio::task::spawn_blocking(move || builder.over_engine(engine)).await;
            opened.unwrap_or_else(|error| Err(OpenError::Groups(format!("opening panicked: {error}"))))
        });
        Self::Opening { term: takeover.term, gate, task }
    }

    pub(super) fn lead(term: u64, gate: Arc<LeasingGate>, bus: Bus) -> Self {
        let watched = bus.clone();
        Self::Leading { term, gate, bus, stopped: Box::pin(async move { watched.stopped().await }) }
    }

    pub(super) fn close(bus: Bus, then: AfterClosing) -> Self {
        Self::Closing { then, task: tokio::spawn(async move { bus.close().await }) }
    }

    /// Waits until the current work ends. Cancel-safe. When this has returned, the caller must replace this value
    /// before the next call.
    pub(super) async fn event(&mut self) -> WorkEvent {
        match self {
            Self::Idle => std::future::pending().await,
            Self::Opening { task, .. } => WorkEvent::Opened(task.await.unwrap_or_else(|error| {
                Err(OpenError::Store(format!("the task that opens the engine ended early: {error}")))
            })),
            Self::Leading { stopped, .. } => WorkEvent::Stopped(stopped.await),
            Self::Closing { then, task } => {
                let closed = task.await.unwrap_or_else(|error| Err(Unavailable::Poisoned(error.to_string())));
                WorkEvent::Closed(*then, closed)
            }
        }
    }

    /// The term whose engine is being opened or which is being led, and its gate; `None` in the other states.
    pub(super) fn term(&self) -> Option<(u64, &Arc<LeasingGate>)> {
        match self {
            Self::Opening { term, gate, .. } | Self::Leading { term, gate, .. } => Some((*term, gate)),
            Self::Idle | Self::Closing { .. } => None,
        }
    }
}
