//! The types of the prombus protocol, shared by servers, clients and SDKs: topics, events, options, frames, and their limits.
//!
//! A payload is checked once, when the server receives it, and from then on only copied: the stored body of an event already
//! contains the JSON that consumers receive.
//!
//! ```
//! use prombus_protocol::{
//!     Body, BodyFields, ClientFrame, EventContext, Uuid, parse_client_frame, put_body_end, put_body_head, put_event,
//!     put_event_head, put_published,
//! };
//!
//! // A client publishes.
//! let parsed = parse_client_frame(br#"{"op":"PUBLISH","corr":"7","topic":"orders","payload":{"total":12}}"#)?;
//! let ClientFrame::Publish { topic, payload, opts } = parsed.frame else { unreachable!() };
//!
//! // The server stores this body ...
//! let mut body = Vec::new();
//! let fields = BodyFields {
//!     ts: opts.ts.unwrap_or(1_700_000_000_000),
//!     topic: &topic,
//!     sid: opts.sid,
//!     key: opts.key.as_deref(),
//!     partition: None,
//!     headers: &opts.headers,
//!     caused_by: &opts.caused_by,
//!     tags: &opts.tags,
//!     addressee: opts.addressee.as_ref(),
//! };
//! put_body_head(&mut body, &fields);
//! payload.push(&mut body);
//! put_body_end(&mut body);
//! assert_eq!(Body::new(&body).payload(), Some(r#"{"total":12}"#));
//!
//! // ... responds to the publisher ...
//! let id = Uuid::from_u128(1);
//! let mut answer = Vec::new();
//! put_published(&mut answer, parsed.corr, id, 1, false);
//! assert_eq!(answer, br#"{"op":"OK","corr":"7","id":"00000000-0000-0000-0000-000000000001","seq":1}"#);
//!
//! // ... and delivers the event to a subscriber.
//! let (mut head, mut delivery) = (Vec::new(), Vec::new());
//! put_event_head(&mut head, "orders", "billing");
//! let context = EventContext { attempt: 1, ack_deadline_ms: 30_000, max_attempts: 5, reason: None, last_error: None };
//! put_event(&mut delivery, &head, id, 1, &body, &context);
//! # Ok::<(), prombus_protocol::FrameError>(())
//! ```
//!
//! This crate has no I/O, no clock and no runtime. `fixtures/` contains golden frames and names, which the tests of every SDK use.

mod body;
mod error_code;
mod event;
mod failure_reports;
mod frame;
mod group_name;
mod handler_failure;
mod idempotency_key;
mod instant;
mod json;
mod json_scanner;
pub mod limits;
pub mod names;
mod one_line;
mod options;
mod pattern;
mod topic_name;
mod typed_topic;

pub use body::{Body, BodyFields, put_body_end, put_body_head, put_body_topic, put_body_ts, put_record};
pub use error_code::{ErrorCode, UnknownErrorCode};
pub use event::{Ack, Addressee, CursorPosition, DeadLetter, DeliveryContext, EventRecord, RedeliveryReason};
pub use failure_reports::{FailureReports, Reported};
pub use frame::{
    ClientFrame, ErrFrame, EventContext, EventFrame, FrameError, FrameReader, OkFrame, Parsed, ServerFrame,
    Token, parse_client_frame, put_client_frame, put_err, put_event, put_event_head, put_event_tail,
    put_ignored, put_ok, put_published,
};
pub use group_name::{GroupName, GroupNameError, check_group_name};
pub use handler_failure::{AfterFailure, FailedEvent, HandlerFailure};
pub use idempotency_key::{id_of_checked_key, id_of_key};
pub use instant::{InstantError, instant_text, parse_instant};
pub use json::{Json, JsonError, push_json, put_string};
pub use limits::*;
pub use one_line::one_line;
pub use options::{Filter, OptionError, PublishOptions, Start, SubscribeOptions};
pub use pattern::{Pattern, check_pattern};
pub use serde_json::value::RawValue;
pub use topic_name::{DEAD_LETTER_PREFIX, Topic, TopicError, check_topic};
pub use typed_topic::{TopicFor, TypedTopic};
pub use uuid::Uuid;
