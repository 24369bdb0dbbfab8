//! A borrowed view of a stored event, which filters examine before the event is copied.

use crate::engine::StoredEvent;
use crate::event_id::uuid_of;
use prombus_protocol::{Body, Topic, Uuid};
use std::sync::Arc;

/// Returns whether an event is delivered to the member. If not, the event is settled without a delivery.
pub type EventFilter = Arc<dyn Fn(&EventView<'_>) -> bool + Send + Sync>;

/// An event in the store, not copied yet.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) event: &'a StoredEvent<'a>,
}

impl<'a> EventView<'a> {
    /// A view of an event of a topic.
    pub fn new(topic: &'a Topic, event: &'a StoredEvent<'a>) -> Self {
        Self { topic, event }
    }

    /// Its topic.
    pub fn topic(&self) -> &'a Topic {
        self.topic
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        uuid_of(self.event.id)
    }

    /// Its seq: its position in its topic.
    pub fn seq(&self) -> u64 {
        self.event.seq
    }

    /// The publisher's time.
    pub fn ts(&self) -> i64 {
        self.event.ts
    }

    /// Its key.
    pub fn key(&self) -> Option<&'a str> {
        self.event.key.and_then(|key| std::str::from_utf8(key).ok())
    }

    /// Its other parts: headers, tags and payload.
    pub fn body(&self) -> Body<'a> {
        Body::new(self.event.body)
    }
}
