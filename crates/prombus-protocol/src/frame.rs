//! The frames of the WebSocket protocol: JSON objects in text messages, told apart by `op`.
//!
//! [`parse_client_frame`] parses the frames of clients in one pass that checks the JSON and cuts out the fields; it never parses a
//! payload. [`FrameReader`] returns the same results for the frames of one client, and is faster if they repeat. The `put_` functions
//! write the frames of the server; an EVENT is `head + record bytes + tail`. For clients and tests, this module can also write client
//! frames and read server frames.
//!
//! This module checks only the form of frames. It knows no subscriptions, permissions or events.

mod client;
mod client_parse;
mod field_names;
mod reader;
mod server;

pub use client::{ClientFrame, Parsed, Token, put_client_frame};
pub use client_parse::{FrameError, parse_client_frame};
pub use reader::FrameReader;
pub use server::{
    ErrFrame, EventContext, EventFrame, OkFrame, ServerFrame, put_err, put_event, put_event_head,
    put_event_tail, put_ignored, put_ok, put_published,
};

/// Appends `,"corr":` and the `corr` as the client sent it, if there is one.
fn put_corr(into: &mut Vec<u8>, corr: Option<&str>) {
    if let Some(corr) = corr {
        into.extend_from_slice(b",\"corr\":");
        into.extend_from_slice(corr.as_bytes());
    }
}
