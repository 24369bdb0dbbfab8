//! Events, and the data of their delivery, with the JSON names of the protocol.

use crate::topic_name::Topic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use uuid::Uuid;

fn is_zero(seq: &u64) -> bool {
    *seq == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Reads `null` as absent: JavaScript clients may send either.
pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The group that an event is addressed to. Only this group receives the event; other groups pass over it, and states by key
/// ignore it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Addressee {
    /// The topic or pattern of the group, as its creator wrote it.
    pub subscription: String,
    /// The name of the group.
    pub group: String,
}

impl Addressee {
    /// The group `group` on the topic or pattern `subscription`.
    pub fn new(subscription: impl Into<String>, group: impl Into<String>) -> Self {
        Self { subscription: subscription.into(), group: group.into() }
    }
}

/// One event. `T` is the payload; by default its JSON text, unparsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord<T = Box<RawValue>> {
    /// The event's id; a UUIDv7 unless the publisher chose it.
    pub id: Uuid,
    /// The position in its topic, from 1; 0 if the event is not stored yet.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// The id of the publisher's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sid: Option<Uuid>,
    /// Milliseconds since 1970: the publisher's `ts`, or otherwise the time at which the server received the event.
    pub ts: i64,
    /// The topic that it was published to.
    pub topic: Topic,
    /// The entity that the event is about. A compacted topic keeps the newest event of each key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The partition, if the store has partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Names and values that are stored next to the payload.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: T,
    /// Ids of the events that caused this one.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub caused_by: Vec<Uuid>,
    /// Labels to filter by.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The only group that receives the event; absent if all groups do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressee: Option<Addressee>,
}

impl<T> EventRecord<T> {
    /// The same event, with its payload converted by `change`.
    ///
    /// # Errors
    /// The errors of `change`.
    pub fn try_map<U, E>(self, change: impl FnOnce(T) -> Result<U, E>) -> Result<EventRecord<U>, E> {
        let Self { id, seq, sid, ts, topic, key, partition, headers, payload, caused_by, tags, addressee } =
            self;
        let payload = change(payload)?;
        Ok(EventRecord {
            id,
            seq,
            sid,
            ts,
            topic,
            key,
            partition,
            headers,
            payload,
            caused_by,
            tags,
            addressee,
        })
    }
}

impl EventRecord {
    /// The same event with its payload parsed.
    ///
    /// # Errors
    /// If the payload is not of type `T`.
    pub fn parse<T: DeserializeOwned>(self) -> Result<EventRecord<T>, serde_json::Error> {
        let payload = self.json()?;
        self.try_map(|_| Ok(payload))
    }

    /// The payload as a value.
    ///
    /// # Errors
    /// If the payload is not of type `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        // A payload may be nested 128 deep, one more than serde_json parses by default.
        let mut deserializer = serde_json::Deserializer::from_str(self.payload.get());
        deserializer.disable_recursion_limit();
        let value = T::deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }
}

/// The progress of a group in a topic: the event at its floor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CursorPosition {
    /// The topic or pattern of the subscription.
    pub topic: String,
    /// The event at the floor: it and all events before it are settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_id: Option<Uuid>,
    /// The `ts` of the event at the floor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ts: Option<i64>,
}

/// Why an event is redelivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedeliveryReason {
    /// The member's lease expired.
    LeaseExpired,
    /// The member nacked the event.
    Nacked,
    /// The member's connection broke.
    MemberLost,
    /// The server was restarted. The event may have been delivered before the restart.
    ServerRestarted,
}

impl RedeliveryReason {
    /// The reason as it is sent on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::Nacked => "nacked",
            Self::MemberLost => "member_lost",
            Self::ServerRestarted => "server_restarted",
        }
    }
}

impl fmt::Display for RedeliveryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a handler learns about a delivery, in addition to the event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryContext {
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The number of attempts after which the event becomes a dead letter.
    #[serde(rename = "maxAttempts")]
    pub max_attempts: u32,
    /// The progress of the group, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<CursorPosition>,
    /// Why the event is redelivered. On attempt 1 it is `None`, or `ServerRestarted` if the event may have been delivered before a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<RedeliveryReason>,
    /// The duration of the lease, in milliseconds from the delivery.
    #[serde(default)]
    pub ack_deadline_ms: u64,
    /// The reason of the last nack, if known; cut to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// The result of an ack or nack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The event.
    pub id: Uuid,
    /// Whether the ack or nack succeeded.
    pub ok: bool,
    /// If `ok` is false: the error. Otherwise the reason of the nack, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<String>,
    /// The sender did not hold the lease any more, so nothing changed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stale: bool,
}

/// The payload of a dead letter: an event that a group gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter<T = Box<RawValue>> {
    /// The topic of the event.
    pub topic: Topic,
    /// The group that gave it up.
    pub group: String,
    /// The whole event.
    pub original: EventRecord<T>,
    /// The error of the last attempt.
    pub err: String,
    /// The number of attempts.
    pub attempts: u32,
    /// The time at which it was given up, in milliseconds since 1970.
    pub ts: i64,
    /// The topic or pattern of the group. Absent in dead letters of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_are_left_out_and_read_back() {
        let text = r#"{"id":"0196f1d0-0000-7000-8000-000000000001","ts":5,"topic":"a.b","payload":[1, 2]}"#;
        let event: EventRecord = serde_json::from_str(text).unwrap();
        assert_eq!(event.payload.get(), "[1, 2]");
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        assert_eq!(event.clone().parse::<Vec<u8>>().unwrap().payload, [1, 2]);
        assert!(event.parse::<String>().is_err());
    }

    #[test]
    fn reasons_have_one_text() {
        for reason in [
            RedeliveryReason::LeaseExpired,
            RedeliveryReason::Nacked,
            RedeliveryReason::MemberLost,
            RedeliveryReason::ServerRestarted,
        ] {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
        }
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let text = r#"{"id":"0196f1d0-1c2a-7b3c-8d4e-5f6071829304","ts":1,"topic":"t","payload":null,
            "seq":null,"sid":null,"key":null,"partition":null,"headers":null,"caused_by":null,"tags":null,
            "addressee":null,"new":1}"#;
        let record: EventRecord = serde_json::from_str(text).expect("a record");
        assert_eq!((record.seq, record.tags.len(), record.headers.len()), (0, 0, 0));
    }

    #[test]
    fn a_payload_with_the_maximum_nesting_is_parsed() {
        let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        let text =
            format!(r#"{{"id":"0196f1d0-1c2a-7b3c-8d4e-5f6071829304","ts":1,"topic":"t","payload":{deep}}}"#);
        let record: EventRecord = serde_json::from_str(&text).expect("a record");
        record.parse::<serde_json::Value>().expect("a value");
    }
}
