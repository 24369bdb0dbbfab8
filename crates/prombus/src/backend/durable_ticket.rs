//! A future that waits until verdicts of a member are durable. A verdict changes its group, and the change is written to the
//! engine as a record. The records of a group are numbered; the number is called the *generation*.

use crate::error::Unavailable;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Resolves when a member's verdicts are durable. They apply immediately, before they are durable. If the ticket is dropped,
/// they still become durable, within 10 ms.
#[must_use = "awaiting it waits until this is durable"]
pub struct DurableTicket {
    source: Option<(Arc<dyn Durability>, u64)>,
    failed: Option<Unavailable>,
}

/// Tells whether a group's records are durable.
pub trait Durability: Send + Sync + 'static {
    /// Ready when the record of this generation is durable, or with an error if it cannot be written at present. Polling makes
    /// the engine commit the record without further delay.
    fn poll_generation(&self, generation: u64, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>>;
}

impl DurableTicket {
    /// A ticket that waits for the record of this generation.
    pub fn new(source: Arc<dyn Durability>, generation: u64) -> Self {
        Self { source: Some((source, generation)), failed: None }
    }

    /// A ticket that is ready: there is nothing to wait for.
    pub fn done() -> Self {
        Self { source: None, failed: None }
    }

    /// A ticket that is ready and fails with this reason.
    pub fn failed(reason: Unavailable) -> Self {
        Self { source: None, failed: Some(reason) }
    }
}

impl Future for DurableTicket {
    type Output = Result<(), Unavailable>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(reason) = self.failed.take() {
            return Poll::Ready(Err(reason));
        }
        match &self.source {
            None => Poll::Ready(Ok(())),
            Some((source, generation)) => source.poll_generation(*generation, context),
        }
    }
}

impl std::fmt::Debug for DurableTicket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DurableTicket({:?})", self.source.as_ref().map(|(_, generation)| generation))
    }
}
