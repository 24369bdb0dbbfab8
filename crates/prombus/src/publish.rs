//! A batch of events to publish: each is checked and encoded when it is added.

use crate::engine::{NewEvent, TopicId};
use crate::error::PublishError;
use crate::event_id::event_id_of;
use prombus_protocol::{
    Addressee, BodyFields, Json, JsonError, PublishOptions, Topic, TopicFor, Uuid, push_json, put_body_end,
    put_body_head, put_body_topic, put_body_ts,
};
use serde::Serialize;
use std::ops::Range;

/// The memory of a larger batch is not kept for reuse.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// Events to publish together: all or nothing, in one commit. Each event is checked when it is added.
#[derive(Clone, Debug)]
pub struct PublishBatch {
    /// Keys and bodies.
    bytes: Vec<u8>,
    events: Vec<BatchEvent>,
    /// The topics of the events, without consecutive repetitions. A topic can occur more than once.
    topics: Vec<Topic>,
    /// The ts of the last plain body (an event without key, headers and other options), and where its first bytes are: the
    /// next plain body most likely begins with the same bytes.
    head: Option<(i64, Range<usize>)>,
    /// The groups that events of the batch are addressed to, with the index of the event's topic.
    addressees: Vec<(u32, Addressee)>,
    /// The buffer that payloads are serialized into before they are checked.
    scratch: Vec<u8>,
    now_ms: i64,
    max_payload_bytes: usize,
}

#[derive(Clone, Debug)]
struct BatchEvent {
    /// Index into the list of topics.
    topic: u32,
    id: Option<Uuid>,
    ts: i64,
    key: Option<Range<usize>>,
    body: Range<usize>,
    /// The event has a key and its payload is `null`: it deletes the key in a compacted topic.
    is_tombstone: bool,
}

impl PublishBatch {
    /// An empty batch. Events without a ts of their own get `now_ms`.
    pub fn new(now_ms: i64, max_payload_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            events: Vec::new(),
            topics: Vec::new(),
            head: None,
            addressees: Vec::new(),
            scratch: Vec::new(),
            now_ms,
            max_payload_bytes,
        }
    }

    /// Empties the batch for reuse and keeps its memory.
    pub(crate) fn reset(&mut self, now_ms: i64) {
        self.bytes.clear();
        self.events.clear();
        self.topics.clear();
        self.head = None;
        self.addressees.clear();
        self.now_ms = now_ms;
    }

    /// Whether it is small enough to be kept for reuse.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.bytes.capacity() + self.scratch.capacity() <= KEPT_BYTES_MAX && self.events.capacity() <= 4_096
    }

    /// The ts of events that have none of their own.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// How many events it holds.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it holds no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many bytes its events take in memory.
    pub fn byte_count(&self) -> usize {
        self.bytes.len() + self.events.len() * size_of::<BatchEvent>()
    }

    /// Adds an event.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with the event; the batch is unchanged.
    pub fn push<T: Serialize + ?Sized>(
        &mut self,
        topic: impl TopicFor<T>,
        payload: &T,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        let topic = topic.topic()?;
        let mut json = std::mem::take(&mut self.scratch);
        json.clear();
        let written = serde_json::to_writer(&mut json, payload);
        let pushed = match written {
            Ok(()) => self.push_json(topic, &json, options),
            Err(error) => Err(PublishError::Serialize(error.to_string())),
        };
        self.scratch = json;
        pushed
    }

    /// Adds an event whose payload is JSON text already. The text is checked and then stored unchanged, except that
    /// whitespace around it is removed and line breaks between its tokens become spaces.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with the event; the batch is unchanged.
    pub fn push_json(
        &mut self,
        topic: Topic,
        json: &[u8],
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        options.check()?;
        self.add(&topic, json.len(), options, |bytes| push_json(bytes, json))
    }

    /// Adds an event that the bus itself makes around a payload that was checked when it was published, such as a dead
    /// letter. It may be a little larger and more deeply nested than a publisher's event.
    ///
    /// # Errors
    /// [`PublishError`] says what is wrong with the options; the batch is unchanged.
    pub(crate) fn push_own(
        &mut self,
        topic: &Topic,
        json: &[u8],
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        options.check()?;
        self.add(topic, 0, options, |bytes| {
            bytes.extend_from_slice(json);
            Ok(())
        })
    }

    /// Adds an event whose payload and options were checked when its frame was read.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`]; the batch is unchanged.
    pub fn push_parsed(
        &mut self,
        topic: &Topic,
        payload: &Json<'_>,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        self.add(topic, payload.get().len(), options, |bytes| {
            payload.push(bytes);
            Ok(())
        })
    }

    fn add(
        &mut self,
        topic: &Topic,
        payload_bytes: usize,
        options: &PublishOptions,
        put_payload: impl FnOnce(&mut Vec<u8>) -> Result<(), JsonError>,
    ) -> Result<(), PublishError> {
        if payload_bytes > self.max_payload_bytes {
            return Err(PublishError::TooLarge { bytes: payload_bytes, limit_bytes: self.max_payload_bytes });
        }
        let ts = options.ts.unwrap_or(self.now_ms);
        let key_start = self.bytes.len();
        let key = options.key.as_ref().map(|key| {
            self.bytes.extend_from_slice(key.as_bytes());
            key_start..self.bytes.len()
        });
        let start = self.bytes.len();
        self.put_head(topic, ts, options);
        let payload_start = self.bytes.len();
        if let Err(error) = put_payload(&mut self.bytes) {
            self.bytes.truncate(key_start);
            self.head = None;
            return Err(error.into());
        }
        // States by key ignore an addressed event, so it deletes nothing.
        let is_tombstone = key.is_some()
            && options.addressee.is_none()
            && self.bytes[payload_start..].trim_ascii() == b"null";
        put_body_end(&mut self.bytes);
        let body = start..self.bytes.len();
        if self.topics.last() != Some(topic) {
            self.topics.push(topic.clone());
        }
        let topic = self.topics.len() as u32 - 1;
        self.addressees.extend(options.addressee.clone().map(|addressee| (topic, addressee)));
        self.events.push(BatchEvent { topic, id: options.id, ts, key, body, is_tombstone });
        Ok(())
    }

    /// Writes a body up to its payload.
    fn put_head(&mut self, topic: &Topic, ts: i64, options: &PublishOptions) {
        let PublishOptions { id: _, ts: _, key, headers, tags, caused_by, sid, addressee } = options;
        let is_plain = key.is_none()
            && sid.is_none()
            && headers.is_empty()
            && tags.is_empty()
            && caused_by.is_empty()
            && addressee.is_none();
        if !is_plain {
            let fields = BodyFields {
                ts,
                topic: topic.as_str(),
                sid: *sid,
                key: key.as_deref(),
                partition: None,
                headers,
                caused_by,
                tags,
                addressee: addressee.as_ref(),
            };
            return put_body_head(&mut self.bytes, &fields);
        }
        match &self.head {
            Some((known, bytes)) if *known == ts => self.bytes.extend_from_within(bytes.clone()),
            _ => {
                let start = self.bytes.len();
                put_body_ts(&mut self.bytes, ts);
                self.head = Some((ts, start..self.bytes.len()));
            }
        }
        put_body_topic(&mut self.bytes, topic);
    }

    /// The topics of its events. A topic may occur more than once.
    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// The topics and addressees of its events for one group. These groups must exist and read the topics when the batch is
    /// appended.
    pub fn addressed_events(&self) -> impl Iterator<Item = (&Topic, &Addressee)> {
        self.addressees.iter().map(|(topic, addressee)| (&self.topics[*topic as usize], addressee))
    }

    /// Whether an event of the batch is for one group.
    pub fn has_addressees(&self) -> bool {
        !self.addressees.is_empty()
    }

    /// For each event, the index of its topic in [`Self::topics`].
    pub fn topic_places(&self) -> impl Iterator<Item = usize> {
        self.events.iter().map(|event| event.topic as usize)
    }

    /// The event at an index, for an engine in which its topic has the id `topic`.
    pub fn event(&self, at: usize, topic: TopicId) -> NewEvent<'_> {
        let event = &self.events[at];
        NewEvent {
            topic,
            id: event.id.map(event_id_of),
            ts: event.ts,
            key: event.key.clone().map(|key| &self.bytes[key]),
            body: &self.bytes[event.body.clone()],
            tombstone: event.is_tombstone,
        }
    }
}
