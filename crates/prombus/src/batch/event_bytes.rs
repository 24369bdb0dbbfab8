//! The bytes of a batch's events in one buffer. Each event is its key, followed by its body.

use crate::engine::StoredEvent;
use prombus_protocol::Topic;

/// The bytes and the topics of events. `clear` keeps the memory for reuse.
#[derive(Clone, Debug, Default)]
pub(super) struct EventBytes {
    bytes: Vec<u8>,
    /// One entry for each sequence of consecutive events with the same topic, so a topic may be listed several times.
    topics: Vec<Topic>,
}

/// The location of an event in an [`EventBytes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct EventSpan {
    topic: u32,
    start: usize,
    key_length: Option<u16>,
    end: usize,
}

impl EventBytes {
    #[inline]
    pub(super) fn push(&mut self, topic: &Topic, event: &StoredEvent<'_>) -> EventSpan {
        if self.topics.last() != Some(topic) {
            self.topics.push(topic.clone());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(event.key.unwrap_or(&[]));
        self.bytes.extend_from_slice(event.body);
        EventSpan {
            topic: self.topics.len() as u32 - 1,
            start,
            key_length: event.key.map(|key| key.len() as u16),
            end: self.bytes.len(),
        }
    }

    #[inline]
    pub(super) fn topic(&self, span: &EventSpan) -> &Topic {
        &self.topics[span.topic as usize]
    }

    #[inline]
    pub(super) fn key(&self, span: &EventSpan) -> Option<&str> {
        let length = usize::from(span.key_length?);
        std::str::from_utf8(&self.bytes[span.start..span.start + length]).ok()
    }

    #[inline]
    pub(super) fn body(&self, span: &EventSpan) -> &[u8] {
        &self.bytes[span.start + usize::from(span.key_length.unwrap_or(0))..span.end]
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.topics.clear();
    }

    #[inline]
    pub(super) fn byte_count(&self) -> usize {
        self.bytes.len()
    }
}
