//! The result of a read: events without leases.

use super::event_bytes::{EventBytes, EventSpan};
use crate::engine::{EventId, StoredEvent};
use prombus_protocol::Topic;

/// One event of an [`EventBatch`].
#[derive(Clone, Copy, Debug)]
pub struct EventItem {
    /// Its seq: its position in its topic.
    pub seq: u64,
    /// Its id.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    span: EventSpan,
}

/// Events that were read together. One buffer holds the bytes of all events.
#[derive(Clone, Debug, Default)]
pub struct EventBatch {
    content: EventBytes,
    items: Vec<EventItem>,
}

impl EventBatch {
    /// The events, in order.
    pub fn items(&self) -> &[EventItem] {
        &self.items
    }

    /// Whether the batch has no events.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The topic of an event.
    pub fn topic(&self, item: &EventItem) -> &Topic {
        self.content.topic(&item.span)
    }

    /// The key of an event.
    pub fn key(&self, item: &EventItem) -> Option<&str> {
        self.content.key(&item.span)
    }

    /// An event as it is stored: its JSON without id and seq.
    pub fn body(&self, item: &EventItem) -> &[u8] {
        self.content.body(&item.span)
    }

    /// The size of the keys and bodies in bytes.
    pub fn byte_count(&self) -> usize {
        self.content.byte_count()
    }

    /// Appends an event of a topic.
    pub fn push(&mut self, topic: &Topic, event: &StoredEvent<'_>) {
        let span = self.content.push(topic, event);
        self.items.push(EventItem { seq: event.seq, id: event.id, ts: event.ts, span });
    }
}
