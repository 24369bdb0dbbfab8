//! [`Deliveries`]: deliveries that were pulled together.

use crate::backend::{Membership, SettleOutcome, Verdict};
use crate::batch::DeliveryBatch;
use crate::delivery::Position;
use crate::event::{Delivery, Event, Settling};
use std::sync::Arc;

/// Deliveries that were pulled together.
#[derive(Clone)]
pub struct Deliveries {
    pub(super) batch: Arc<DeliveryBatch>,
    /// The index of the first delivery; those before it in the batch were handed out earlier.
    pub(super) from: usize,
    pub(super) member: Arc<dyn Membership>,
    /// The member's limit of attempts, which the deliveries report.
    pub(super) max_attempts: u32,
}

impl Deliveries {
    /// The number of deliveries.
    pub fn len(&self) -> usize {
        self.batch.items().len() - self.from
    }

    /// Whether it contains no delivery.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        (self.from..self.batch.items().len()).map(|at| Event::delivered(Arc::clone(&self.batch), at))
    }

    /// The deliveries, to be settled one by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Delivery> + '_ {
        (self.from..self.batch.items().len())
            .map(|at| Delivery::new(Arc::clone(&self.batch), at, Arc::clone(&self.member), self.max_attempts))
    }

    /// Acks all deliveries. The acks apply at once; await the result to wait until they are durable. The result is stale if any
    /// of the acks was stale.
    pub fn ack(&self) -> Settling {
        let items = &self.batch.items()[self.from..];
        let verdicts: Vec<(Position, Verdict<'_>)> =
            items.iter().map(|item| (item.position, Verdict::Ack)).collect();
        let mut outcomes = Vec::with_capacity(verdicts.len());
        let ticket = self.member.settle(&verdicts, &mut outcomes);
        Settling::new(ticket, outcomes.contains(&SettleOutcome::Stale))
    }
}

impl std::fmt::Debug for Deliveries {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.events()).finish()
    }
}
