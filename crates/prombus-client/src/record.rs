//! Events to publish, and the results of publishing them.

use crate::error::RecordError;
use prombus_protocol::{EventRecord, PublishOptions, RawValue, TopicFor, Uuid};
use serde::Serialize;
use std::borrow::Cow;

/// An event to publish.
#[derive(Clone, Debug)]
pub struct Record {
    /// The topic to publish to.
    pub topic: String,
    /// The payload, as JSON.
    pub payload: Box<RawValue>,
    /// Id, key, headers and so on.
    pub options: PublishOptions,
}

/// A published event, which is on the server's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The id of the event.
    pub id: Uuid,
    /// The position of the event in its topic.
    pub seq: u64,
    /// The topic already had an event with this id, so nothing was added. Also true if the client resent the record because the first
    /// response was lost; the event is stored once.
    pub duplicate: bool,
}

impl Record {
    /// A record with a payload. `topic` is a name, or a typed topic with the type of the payload.
    ///
    /// # Errors
    /// If the topic name is not valid, or the payload cannot be written as JSON.
    pub fn new<T: Serialize + ?Sized>(topic: impl TopicFor<T>, payload: &T) -> Result<Self, RecordError> {
        let topic = topic.topic()?.to_string();
        let payload = serde_json::value::to_raw_value(payload)?;
        Ok(Self { topic, payload, options: PublishOptions::default() })
    }

    /// Sets the id.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.options.id = Some(id);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.options.key = Some(key.into());
        self
    }

    /// The record's id. A record without an id gets a UUIDv7, so that it can be resent and is stored once.
    pub fn ensure_id(&mut self) -> Uuid {
        *self.options.id.get_or_insert_with(Uuid::now_v7)
    }

    /// A copy of an event, with the same key, headers, tags and payload. `caused_by` contains the original event. The id is derived from the
    /// event's id and the topic, so that a second copy to the same topic is a duplicate. The copy has the event's addressee; the server refuses
    /// it if that group does not read the topic.
    pub fn copy_of(event: &EventRecord, topic: &str) -> Self {
        let id = Uuid::new_v5(&event.id, topic.as_bytes());
        let options = PublishOptions {
            id: Some(id),
            ts: None,
            key: event.key.clone(),
            headers: event.headers.clone(),
            tags: event.tags.clone(),
            caused_by: vec![event.id],
            sid: None,
            addressee: event.addressee.clone(),
        };
        Self { topic: topic.to_owned(), payload: event.payload.clone(), options }
    }

    /// The approximate size on the wire, in bytes.
    pub fn byte_count(&self) -> usize {
        let options = &self.options;
        let headers: usize = options.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        let tags: usize = options.tags.iter().map(|tag| tag.len() + 3).sum();
        let key = options.key.as_ref().map_or(0, |key| key.len() + 9);
        let ids = (options.caused_by.len() + 2) * 45;
        let addressee =
            options.addressee.as_ref().map_or(0, |it| it.subscription.len() + it.group.len() + 45);
        100 + self.topic.len() + self.payload.get().len() + headers + tags + key + ids + addressee
    }

    pub(crate) fn topic_text(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_an_event_have_one_id_per_topic() {
        let text = r#"{"id":"0196f1d0-0000-7000-8000-000000000001","ts":5,"topic":"a","key":"k","tags":["t"],
            "headers":{"h":"v"},"addressee":{"subscription":"a","group":"g"},"caused_by":["0196f1d0-0000-7000-8000-000000000002"],"payload":[1, 2]}"#;
        let event: EventRecord = serde_json::from_str(text).unwrap();
        let (one, again, other) =
            (Record::copy_of(&event, "b"), Record::copy_of(&event, "b"), Record::copy_of(&event, "c"));
        assert_eq!(one.options.id, again.options.id);
        assert_ne!(one.options.id, other.options.id);
        assert_eq!(one.options.caused_by, [event.id]);
        assert_eq!(one.options.addressee, event.addressee);
        assert_eq!((one.options.key.as_deref(), one.payload.get()), (Some("k"), "[1, 2]"));
        assert_eq!((one.options.headers, one.options.tags), (event.headers, event.tags));
    }
}
