//! The frames of the WebSocket protocol: JSON objects in text messages, told apart by `op`.
//!
//! What clients send is read by [`parse_client_frame`] in one pass that checks the JSON and cuts out the fields; a payload
//! is never parsed. [`FrameReader`] does the same for the frames of one client, faster where they repeat. What the server sends is written by the `put_` functions, the delivery of an event as
//! `head + record bytes + tail`. Both directions also go the other way, for clients and for tests.
//!
//! Whoever is subscribed, what may be done and what an id belongs to is not known here.

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

/// Appends `,"corr":` and the `corr`, as it came, if there is one.
fn put_corr(into: &mut Vec<u8>, corr: Option<&str>) {
    if let Some(corr) = corr {
        into.extend_from_slice(b",\"corr\":");
        into.extend_from_slice(corr.as_bytes());
    }
}
