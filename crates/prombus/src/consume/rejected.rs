//! The dead letter of an event that a projector cannot fold.

use crate::backend::Backend;
use crate::error::ReadError;
use crate::event::Event;
use prombus_protocol::{DeadLetter, PublishOptions, RawValue, Topic, Uuid};

/// The namespace of the ids that projectors derive. A dead letter's id is a UUIDv5 in it. A state event's id is a UUIDv5 of
/// the key, in a namespace derived from this one and the input's id.
pub(crate) const NAMESPACE: Uuid = Uuid::from_u128(0x84d1_3f7a_5b62_5c09_9e38_c06f_2ab7_71d5);

/// A dead letter to publish.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// The dead-letter topic.
    pub topic: Topic,
    /// The payload of the dead letter, as JSON.
    pub json: Vec<u8>,
    /// The publish options of the dead letter. Their id is that of the event's first dead letter, until
    /// [`with_next_id`](Self::with_next_id) replaces it.
    pub options: PublishOptions,
    /// An id derived from topic, group and event: a repeated publish adds nothing.
    id: Uuid,
}

impl Rejected {
    /// The dead letter of an event that a group on the topic or pattern `subscription` cannot fold. `None` if the event cannot be read or encoded.
    pub fn new(event: &Event, subscription: &str, group: &str, error: &str, now_ms: i64) -> Option<Self> {
        let topic = event.topic();
        let letter = DeadLetter::<Box<RawValue>> {
            topic: topic.clone(),
            group: group.to_owned(),
            original: event.record().ok()?,
            err: error.to_owned(),
            attempts: 1,
            ts: now_ms,
            subscription: Some(subscription.to_owned()),
        };
        let name = format!("{topic} {group} {}", event.id());
        let id = Uuid::new_v5(&NAMESPACE, name.as_bytes());
        let options = PublishOptions { id: Some(id), ..PublishOptions::default() };
        Some(Self { topic: topic.dead_letter(), json: serde_json::to_vec(&letter).ok()?, options, id })
    }

    /// Gives the dead letter another id if the event was rejected before and that dead letter is closed. Call this before the dead
    /// letter is published.
    ///
    /// # Errors
    /// The dead-letter topic cannot be read.
    pub async fn with_next_id(mut self, backend: &dyn Backend) -> Result<Self, ReadError> {
        self.options.id = Some(backend.next_letter_id(&self.topic, self.id).await?);
        Ok(self)
    }
}
