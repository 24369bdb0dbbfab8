//! The result of one pull of a member: events with their leases.

use super::event_bytes::{EventBytes, EventSpan};
use crate::delivery::{Leased, Millis, Position};
use crate::engine::{EventId, StoredEvent};
use prombus_protocol::{RedeliveryReason, Topic};
use std::collections::HashMap;
use std::sync::Arc;

/// One delivery of a [`DeliveryBatch`].
#[derive(Clone, Copy, Debug)]
pub struct DeliveryItem {
    /// The topic and the seq of the event. Verdicts refer to the event by this position.
    pub position: Position,
    /// The event's id.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// The number of this attempt; the first is 1.
    pub attempt: u32,
    /// Why the event was redelivered. On attempt 1 it is `None`, or `ServerRestarted` if the event may have been delivered
    /// before a restart.
    pub reason: Option<RedeliveryReason>,
    /// How long the lease lasts, from the time of the pull.
    pub lease_ms: Millis,
    deadline: Millis,
    span: EventSpan,
}

/// Deliveries that were pulled together. One buffer holds the bytes of all events. Reuse a batch for many pulls: it keeps its
/// memory.
#[derive(Clone, Debug, Default)]
pub struct DeliveryBatch {
    content: EventBytes,
    items: Vec<DeliveryItem>,
    /// The errors with which the previous attempts of events failed, as far as they are known.
    last_errors: HashMap<Position, Arc<str>>,
    /// The epoch of the group when the events were leased. The backend raises the epoch of a group when leases become void,
    /// so leases of an earlier epoch may be void.
    epoch: u64,
}

impl DeliveryItem {
    /// When the lease expires unless it is extended, by the backend's own clock.
    pub fn deadline(&self) -> Millis {
        self.deadline
    }
}

impl DeliveryBatch {
    /// The epoch of the group when the events were leased. The backend raises the group's epoch when leases become void.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The deliveries, in order.
    pub fn items(&self) -> &[DeliveryItem] {
        &self.items
    }

    /// Whether the batch has no deliveries.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The topic of an event.
    pub fn topic(&self, item: &DeliveryItem) -> &Topic {
        self.content.topic(&item.span)
    }

    /// The key of an event.
    pub fn key(&self, item: &DeliveryItem) -> Option<&str> {
        self.content.key(&item.span)
    }

    /// An event as it is stored: its JSON without id and seq.
    pub fn body(&self, item: &DeliveryItem) -> &[u8] {
        self.content.body(&item.span)
    }

    /// Whether [`last_error`](Self::last_error) returns an error for any of the events.
    pub fn has_last_errors(&self) -> bool {
        !self.last_errors.is_empty()
    }

    /// The error with which the previous attempt of an event failed, if it is known.
    pub fn last_error(&self, item: &DeliveryItem) -> Option<&str> {
        self.last_errors.get(&item.position).map(|error| &**error)
    }

    /// Empties the batch for another pull and keeps its memory.
    pub fn clear(&mut self) {
        self.content.clear();
        self.items.clear();
        if !self.last_errors.is_empty() {
            self.last_errors.clear();
        }
    }

    /// The size of the events in bytes.
    pub fn byte_count(&self) -> usize {
        self.content.byte_count()
    }

    /// Adds an event, as attempt 1 and without a lease. A later call of [`lease`](Self::lease) sets the attempt and the
    /// lease.
    pub fn push(&mut self, topic: &Topic, position: Position, event: &StoredEvent<'_>) {
        let span = self.content.push(topic, event);
        self.items.push(DeliveryItem {
            position,
            id: event.id,
            ts: event.ts,
            attempt: 1,
            reason: None,
            lease_ms: 0,
            deadline: 0,
            span,
        });
    }

    /// Sets the leases of the items, and removes the items that have no lease in `leases`. `leases` is in the order of the
    /// items.
    pub fn lease(
        &mut self,
        leases: &[Leased],
        last_errors: Vec<(Position, Arc<str>)>,
        now: Millis,
        epoch: u64,
    ) {
        self.epoch = epoch;
        let mut leases = leases.iter().peekable();
        self.last_errors.extend(last_errors);
        self.items.retain_mut(|item| {
            let Some(lease) = leases.next_if(|lease| lease.position == item.position) else { return false };
            item.attempt = lease.attempt;
            item.reason = lease.reason;
            item.lease_ms = lease.deadline.saturating_sub(now);
            item.deadline = lease.deadline;
            true
        });
    }
}
