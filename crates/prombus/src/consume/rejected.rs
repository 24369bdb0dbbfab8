//! Events that a projector cannot fold go to the dead letters.

use crate::event::Event;
use prombus_protocol::{DeadLetter, PublishOptions, RawValue, Topic, Uuid};

/// Ids that projectors make are UUIDv5 in this namespace: of dead letters, and of states (there the namespace of this and the
/// input's id, with the key).
pub(crate) const NAMESPACE: Uuid = Uuid::from_u128(0x84d1_3f7a_5b62_5c09_9e38_c06f_2ab7_71d5);

/// A dead letter that is to be published.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Where it goes.
    pub topic: Topic,
    /// Its payload, as JSON.
    pub json: Vec<u8>,
    /// With an id made from topic, group and event: published again, it adds nothing.
    pub options: PublishOptions,
}

impl Rejected {
    /// The dead letter of an event that a group cannot fold. `None` if the event cannot be read.
    pub fn new(event: &Event, group: &str, error: &str, now_ms: i64) -> Option<Self> {
        let topic = event.topic();
        let letter = DeadLetter::<Box<RawValue>> {
            topic: topic.clone(),
            group: group.to_owned(),
            original: event.record().ok()?,
            err: error.to_owned(),
            attempts: 1,
            ts: now_ms,
        };
        let name = format!("{topic} {group} {}", event.id());
        let id = Uuid::new_v5(&NAMESPACE, name.as_bytes());
        let options = PublishOptions { id: Some(id), ..PublishOptions::default() };
        Some(Self { topic: topic.dead_letter(), json: serde_json::to_vec(&letter).ok()?, options })
    }
}
