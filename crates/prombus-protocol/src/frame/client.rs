//! The frames that clients send.

use super::put_corr;
use crate::json::{Json, put_string, put_u64, put_uuid};
use crate::options::{PublishOptions, Start, SubscribeOptions};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use uuid::Uuid;

/// A client's credential. It derefs to the text, but `Debug` does not show it, so that it cannot be logged by mistake.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl Deref for Token {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A client frame, with the `corr` that the response echoes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// The JSON text of the `corr` as the client sent it: a string or a number.
    pub corr: Option<&'a str>,
    /// The frame.
    pub frame: ClientFrame<'a>,
    /// Unknown fields; the OK lists them.
    pub ignored: Vec<String>,
}

/// A client frame. In a parsed frame, topics, groups and options are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame<'a> {
    /// Sends the client's token.
    Auth {
        /// The token, if the frame has one.
        token: Option<Token>,
    },
    /// Publishes an event.
    Publish {
        /// The topic's name, not a pattern.
        topic: Cow<'a, str>,
        /// The checked payload.
        payload: Json<'a>,
        /// Id, key, headers and so on.
        opts: PublishOptions,
    },
    /// Joins a group.
    Subscribe {
        /// A topic or a pattern.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
        /// Where to start, limits and so on.
        opts: SubscribeOptions,
    },
    /// Leaves a group.
    Unsubscribe {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
    },
    /// Reports that the member has handled an event, which settles it.
    Ack {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
        /// The event.
        id: Uuid,
    },
    /// Reports that the member failed to handle an event, so that it is redelivered.
    Nack {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
        /// The event.
        id: Uuid,
        /// The error, cut to [`MAX_REASON_BYTES`](crate::limits::MAX_REASON_BYTES).
        reason: Option<Cow<'a, str>>,
        /// The delay until the redelivery; the server's backoff if absent.
        delay_ms: Option<u64>,
        /// Gives the event up: it becomes a dead letter at once.
        dead: bool,
    },
    /// Extends the lease of an event.
    Modack {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
        /// The event.
        id: Uuid,
        /// How long the lease runs from now, at least [`MIN_EXTEND_MS`](crate::limits::MIN_EXTEND_MS); the subscription's
        /// `ackTimeoutMs` if absent.
        extend_ms: Option<u64>,
    },
    /// Stops the deliveries of a subscription.
    Pause {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
    },
    /// Restarts the deliveries of a subscription.
    Resume {
        /// The subscription's topic or pattern, as it was subscribed.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
    },
    /// Asks for the progress of a group.
    Cursor {
        /// The group's topic or pattern.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
    },
    /// Moves a group to another position.
    Seek {
        /// The group's topic or pattern.
        topic: Cow<'a, str>,
        /// The group.
        group: Cow<'a, str>,
        /// The position to move to.
        to: Start,
    },
}

impl ClientFrame<'_> {
    /// The frame's `op`.
    pub const fn op(&self) -> &'static str {
        match self {
            Self::Auth { .. } => "AUTH",
            Self::Publish { .. } => "PUBLISH",
            Self::Subscribe { .. } => "SUBSCRIBE",
            Self::Unsubscribe { .. } => "UNSUBSCRIBE",
            Self::Ack { .. } => "ACK",
            Self::Nack { .. } => "NACK",
            Self::Modack { .. } => "MODACK",
            Self::Pause { .. } => "PAUSE",
            Self::Resume { .. } => "RESUME",
            Self::Cursor { .. } => "CURSOR",
            Self::Seek { .. } => "SEEK",
        }
    }
}

/// Appends a client's frame. `corr` is JSON text: a string in quotes, or a number.
pub fn put_client_frame(into: &mut Vec<u8>, corr: Option<&str>, frame: &ClientFrame<'_>) {
    into.extend_from_slice(b"{\"op\":\"");
    into.extend_from_slice(frame.op().as_bytes());
    into.push(b'"');
    put_corr(into, corr);
    match frame {
        ClientFrame::Auth { token } => {
            if let Some(token) = token {
                put_text(into, "token", token);
            }
        }
        ClientFrame::Publish { topic, payload, opts } => {
            put_text(into, "topic", topic);
            put_name(into, "payload");
            payload.push(into);
            if !opts.is_empty() {
                put_value(into, "opts", opts);
            }
        }
        ClientFrame::Subscribe { topic, group, opts } => {
            put_subscription(into, topic, group);
            if !opts.is_empty() {
                put_value(into, "opts", opts);
            }
        }
        ClientFrame::Unsubscribe { topic, group }
        | ClientFrame::Pause { topic, group }
        | ClientFrame::Resume { topic, group }
        | ClientFrame::Cursor { topic, group } => put_subscription(into, topic, group),
        ClientFrame::Ack { topic, group, id } => {
            put_subscription(into, topic, group);
            put_id(into, *id);
        }
        ClientFrame::Nack { topic, group, id, reason, delay_ms, dead } => {
            put_subscription(into, topic, group);
            put_id(into, *id);
            if let Some(reason) = reason {
                put_text(into, "reason", reason);
            }
            put_number(into, "delay_ms", *delay_ms);
            if *dead {
                into.extend_from_slice(b",\"dead\":true");
            }
        }
        ClientFrame::Modack { topic, group, id, extend_ms } => {
            put_subscription(into, topic, group);
            put_id(into, *id);
            put_number(into, "extend_ms", *extend_ms);
        }
        ClientFrame::Seek { topic, group, to } => {
            put_subscription(into, topic, group);
            put_value(into, "to", to);
        }
    }
    into.push(b'}');
}

fn put_name(into: &mut Vec<u8>, name: &str) {
    into.extend_from_slice(b",\"");
    into.extend_from_slice(name.as_bytes());
    into.extend_from_slice(b"\":");
}

fn put_text(into: &mut Vec<u8>, name: &str, text: &str) {
    put_name(into, name);
    put_string(into, text);
}

fn put_number(into: &mut Vec<u8>, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        put_name(into, name);
        put_u64(into, number);
    }
}

fn put_id(into: &mut Vec<u8>, id: Uuid) {
    put_name(into, "id");
    put_uuid(into, id);
}

fn put_subscription(into: &mut Vec<u8>, topic: &str, group: &str) {
    put_text(into, "topic", topic);
    put_text(into, "group", group);
}

fn put_value(into: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    put_name(into, name);
    serde_json::to_writer(into, value).expect("options have string keys, and a Vec takes every write");
}
