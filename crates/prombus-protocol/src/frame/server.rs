//! The frames that the server sends: OK, ERR and EVENT.

use super::put_corr;
use crate::body::put_record;
use crate::error_code::ErrorCode;
use crate::event::{CursorPosition, DeliveryContext, EventRecord, RedeliveryReason};
use crate::json::{put_string, put_u64, put_uuid};
use serde::de::IntoDeserializer;
use serde::de::value::StringDeserializer;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// A server frame as a client reads it. `T` is the type of the payload; by default its JSON text.
#[derive(Clone, Debug)]
pub enum ServerFrame<T = Box<RawValue>> {
    /// A client frame succeeded.
    Ok(OkFrame),
    /// A client frame failed, or the server ended a subscription or is about to close the connection.
    Err(ErrFrame),
    /// An event is delivered.
    Event(EventFrame<T>),
}

/// The response OK. Its fields depend on the client frame that it responds to.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct OkFrame {
    /// The `corr` of the client frame, as it was sent.
    #[serde(default)]
    pub corr: Option<Box<RawValue>>,
    /// PUBLISH: the event's id.
    #[serde(default)]
    pub id: Option<Uuid>,
    /// PUBLISH: the event's position in its topic.
    #[serde(default)]
    pub seq: Option<u64>,
    /// PUBLISH: the topic already had an event with this id, so nothing was added.
    #[serde(default)]
    pub duplicate: bool,
    /// ACK, NACK: the sender did not hold the lease any more, so nothing changed.
    #[serde(default)]
    pub stale: bool,
    /// SUBSCRIBE: whether the group was created. If not, `from` had no effect.
    #[serde(default)]
    pub created: Option<bool>,
    /// AUTH: the server's version of the protocol.
    #[serde(default)]
    pub protocol: Option<u32>,
    /// CURSOR, SEEK: the progress of the group.
    #[serde(default)]
    pub cursor: Option<CursorPosition>,
    /// Fields of the frame that the server does not know; at most 100.
    #[serde(default)]
    pub ignored: Vec<String>,
}

/// An ERR: usually the response to a client frame.
#[derive(Clone, Debug, Deserialize)]
pub struct ErrFrame {
    /// The kind of error. A code that this version does not know is read as `internal`.
    #[serde(deserialize_with = "code_or_internal")]
    pub code: ErrorCode,
    /// The problem, for people.
    #[serde(default)]
    pub msg: String,
    /// `rate_limited`: the time to wait before the next try.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// The `corr` of the client frame, as it was sent.
    #[serde(default)]
    pub corr: Option<Box<RawValue>>,
}

/// A delivery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct EventFrame<T = Box<RawValue>> {
    /// The subscription's topic or pattern, as it was subscribed.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The event.
    pub event: EventRecord<T>,
    /// Attempt and lease.
    pub ctx: EventContext,
}

/// Attempt and lease of a delivery, as EVENT has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventContext {
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The duration of the lease, in milliseconds from the delivery.
    pub ack_deadline_ms: u64,
    /// The number of attempts after which the event becomes a dead letter; 0 if the server does not say.
    #[serde(default)]
    pub max_attempts: u32,
    /// Why the event is redelivered; `None` if this version does not know the reason. On attempt 1 it is `None`, or `ServerRestarted` if
    /// the event may have been delivered before a restart.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_reason")]
    pub reason: Option<RedeliveryReason>,
    /// The reason of the last nack, if known; cut to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl From<EventContext> for DeliveryContext {
    fn from(context: EventContext) -> Self {
        let EventContext { attempt, ack_deadline_ms, max_attempts, reason, last_error } = context;
        Self { attempt, max_attempts, cursor: None, reason, ack_deadline_ms, last_error }
    }
}

/// Reads a reason. An unknown reason becomes `None`, because a newer server may have more reasons.
fn known_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RedeliveryReason>, D::Error> {
    let reason = Option::<String>::deserialize(deserializer)?;
    Ok(reason.and_then(|reason| {
        let reason: StringDeserializer<serde::de::value::Error> = reason.into_deserializer();
        RedeliveryReason::deserialize(reason).ok()
    }))
}

fn code_or_internal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ErrorCode, D::Error> {
    let code = String::deserialize(deserializer)?;
    Ok(code.parse().unwrap_or(ErrorCode::Internal))
}

impl<'de, T: Deserialize<'de>> ServerFrame<T> {
    /// Reads a frame of the server.
    ///
    /// # Errors
    /// If it is not an OK, ERR or EVENT.
    pub fn parse(bytes: &'de [u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        enum Op {
            #[serde(rename = "OK")]
            Ok,
            #[serde(rename = "ERR")]
            Err,
            #[serde(rename = "EVENT")]
            Event,
        }
        #[derive(Deserialize)]
        struct OnlyOp {
            op: Op,
        }
        // EVENT is by far the most frequent frame, and begins like this if a prombus server sent it.
        if bytes.starts_with(EVENT_OPENING) {
            return Ok(Self::Event(serde_json::from_slice(bytes)?));
        }
        Ok(match serde_json::from_slice::<OnlyOp>(bytes)?.op {
            Op::Ok => Self::Ok(serde_json::from_slice(bytes)?),
            Op::Err => Self::Err(serde_json::from_slice(bytes)?),
            Op::Event => Self::Event(serde_json::from_slice(bytes)?),
        })
    }
}

impl OkFrame {
    /// Appends the frame.
    pub fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(b"{\"op\":\"OK\"");
        put_corr(into, self.corr.as_deref().map(RawValue::get));
        if let Some(id) = self.id {
            into.extend_from_slice(b",\"id\":");
            put_uuid(into, id);
        }
        if let Some(seq) = self.seq {
            into.extend_from_slice(b",\"seq\":");
            put_u64(into, seq);
        }
        let flags: [(&[u8], bool); 4] = [
            (b",\"duplicate\":true", self.duplicate),
            (b",\"stale\":true", self.stale),
            (b",\"created\":true", self.created == Some(true)),
            (b",\"created\":false", self.created == Some(false)),
        ];
        for (text, _) in flags.into_iter().filter(|(_, set)| *set) {
            into.extend_from_slice(text);
        }
        if let Some(protocol) = self.protocol {
            into.extend_from_slice(b",\"protocol\":");
            put_u64(into, u64::from(protocol));
        }
        if let Some(cursor) = &self.cursor {
            into.extend_from_slice(b",\"cursor\":");
            serde_json::to_writer(&mut *into, cursor).expect("a Vec takes every write");
        }
        into.push(b'}');
        put_ignored(into, &self.ignored);
    }
}

/// Adds the list of ignored fields, if there are any, to an OK that was just appended.
pub fn put_ignored(into: &mut Vec<u8>, ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    into.pop_if(|last| *last == b'}');
    into.extend_from_slice(b",\"ignored\":");
    serde_json::to_writer(&mut *into, ignored).expect("a Vec takes every write");
    into.push(b'}');
}

/// Appends an OK without further fields. `corr` is the JSON text that the client sent.
pub fn put_ok(into: &mut Vec<u8>, corr: Option<&str>) {
    into.extend_from_slice(b"{\"op\":\"OK\"");
    put_corr(into, corr);
    into.push(b'}');
}

/// Appends the OK of a PUBLISH. `corr` is the JSON text that the client sent.
pub fn put_published(into: &mut Vec<u8>, corr: Option<&str>, id: Uuid, seq: u64, duplicate: bool) {
    into.extend_from_slice(b"{\"op\":\"OK\"");
    put_corr(into, corr);
    into.extend_from_slice(b",\"id\":");
    put_uuid(into, id);
    into.extend_from_slice(b",\"seq\":");
    put_u64(into, seq);
    into.extend_from_slice(if duplicate { b",\"duplicate\":true}" } else { b"}" });
}

/// Appends an ERR. `corr` is the JSON text that the client sent.
pub fn put_err(
    into: &mut Vec<u8>,
    corr: Option<&str>,
    code: ErrorCode,
    msg: &str,
    retry_after_ms: Option<u64>,
) {
    into.extend_from_slice(b"{\"op\":\"ERR\",\"code\":\"");
    into.extend_from_slice(code.as_str().as_bytes());
    into.extend_from_slice(b"\",\"msg\":");
    put_string(into, msg);
    if let Some(wait) = retry_after_ms {
        into.extend_from_slice(b",\"retry_after_ms\":");
        put_u64(into, wait);
    }
    put_corr(into, corr);
    into.push(b'}');
}

const EVENT_OPENING: &[u8] = b"{\"op\":\"EVENT\",";

/// Appends the head of an EVENT, up to its record. It is the same for all deliveries of a subscription, so callers can keep it.
pub fn put_event_head(into: &mut Vec<u8>, topic: &str, group: &str) {
    into.extend_from_slice(EVENT_OPENING);
    into.extend_from_slice(b"\"topic\":");
    put_string(into, topic);
    into.extend_from_slice(b",\"group\":");
    put_string(into, group);
    into.extend_from_slice(b",\"event\":");
}

/// Appends the tail of an EVENT, after its record.
pub fn put_event_tail(into: &mut Vec<u8>, context: &EventContext) {
    into.extend_from_slice(b",\"ctx\":{\"attempt\":");
    put_u64(into, u64::from(context.attempt));
    into.extend_from_slice(b",\"ack_deadline_ms\":");
    put_u64(into, context.ack_deadline_ms);
    into.extend_from_slice(b",\"max_attempts\":");
    put_u64(into, u64::from(context.max_attempts));
    if let Some(reason) = context.reason {
        into.extend_from_slice(b",\"reason\":\"");
        into.extend_from_slice(reason.as_str().as_bytes());
        into.push(b'"');
    }
    if let Some(error) = &context.last_error {
        into.extend_from_slice(b",\"last_error\":");
        put_string(into, error);
    }
    into.extend_from_slice(b"}}");
}

/// Appends an EVENT: `head` (see [`put_event_head`]), the record made of id, seq and stored body, and the tail.
pub fn put_event(into: &mut Vec<u8>, head: &[u8], id: Uuid, seq: u64, body: &[u8], context: &EventContext) {
    into.extend_from_slice(head);
    put_record(into, id, seq, body);
    put_event_tail(into, context);
}
