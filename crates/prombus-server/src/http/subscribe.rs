//! `GET /subscribe/{topic}`: a topic as Server-Sent Events, from a place on and then as events come.
//!
//! There is no group behind it: nothing is acked, and who reconnects says where it was. The place is found before the answer
//! begins, so that what is published after it is not missed.

use super::call::Call;
use super::pages::{CHUNK, Pages, Pieces, StreamError, body_of, id_of, put_event};
use super::query::Froms;
use super::{Answered, ApiError, answer};
use crate::gateway::{now_ms, steady_ms};
use crate::rate::TokenBucket;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use prombus::{EventChunk, PullLimit, ReadError, Uuid};
use prombus_protocol::{ErrorCode, Start};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// So that proxies do not take the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The first bytes: the client sees that it is connected, and learns when to come again.
const HELLO: &[u8] = b"retry: 1000\n: connected\n\n";
/// How long to wait when the store says that there is more and has nothing to show.
const PAUSE: Duration = Duration::from_millis(100);

struct Tail {
    pages: Pages,
    has_begun: bool,
    /// More is there than was read.
    is_behind: bool,
    /// When the token ends.
    until: Option<Instant>,
    /// What is over it waits.
    rate: Option<TokenBucket>,
    /// The error event was sent; the stream ends.
    has_failed: bool,
}

/// What there is to do.
enum Turn {
    Read,
    KeepAlive,
    End,
}

pub(super) async fn subscribe(call: Call) -> Answered {
    let topic = call.topic()?;
    call.check_may_read(topic.as_str())?;
    let from = call.query.start(Froms::All)?.unwrap_or(Start::Latest);
    let start = match last_event_id(&call.headers)?.or(call.query.uuid("lastEventId")?) {
        Some(id) => Start::AfterId(id),
        None => from,
    };
    let pages = Pages::locate(&call.gateway, &call.principal, topic, start).await?;
    let left_ms = call.principal.expires_ms().map(|expires_ms| expires_ms.saturating_sub(now_ms()).max(0));
    let until = left_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms.unsigned_abs())));
    let rate = call.gateway.rates.deliveries();
    let tail =
        Tail { pages, has_begun: false, is_behind: start != Start::Latest, until, rate, has_failed: false };
    let mut response = answer::typed("text/event-stream", body_of(tail));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Some proxies gather answers before they pass them on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// What an `EventSource` sends when it reconnects; empty is none.
fn last_event_id(headers: &HeaderMap) -> Result<Option<Uuid>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let refused = |_| ApiError::bad_request("header \"last-event-id\": not a UUID");
    Uuid::try_parse(text).map(Some).map_err(refused)
}

impl Pieces for Tail {
    const ROUTE: &'static str = "/subscribe/{topic}";

    fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.has_failed {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Ok(Some(Bytes::from_static(HELLO)));
        }
        loop {
            match self.turn().await? {
                Turn::End => return Ok(None),
                Turn::KeepAlive => return Ok(Some(Bytes::from_static(b": keep-alive\n\n"))),
                Turn::Read => {}
            }
            let from = self.pages.next_seq;
            let events = self.rate.as_mut().map_or(u32::MAX, |rate| rate.available(steady_ms()).max(1));
            let limit = PullLimit { events, ..CHUNK };
            let read = if self.is_behind {
                self.pages.read_patiently(limit).await
            } else {
                match self.pages.read_newest(limit).await {
                    Err(StreamError::Read(error)) if error.is_unreadable() => {
                        self.pages.read_patiently(limit).await
                    }
                    read => read,
                }
            };
            let chunk = match read {
                Err(StreamError::Read(error)) if error.is_unreadable() => {
                    tracing::warn!(path = Self::ROUTE, "the stream ends: {error}");
                    self.has_failed = true;
                    return Ok(Some(error_event(&error)));
                }
                read => read?,
            };
            if let Some(rate) = &mut self.rate {
                rate.take(chunk.events.items().len() as u32, steady_ms());
            }
            self.is_behind = chunk.events.items().len() > 1;
            if !chunk.events.is_empty() {
                return Ok(Some(events_of(&chunk)));
            }
            if self.pages.next_seq == from {
                sleep(PAUSE).await;
            }
        }
    }
}

impl Tail {
    async fn turn(&mut self) -> Result<Turn, StreamError> {
        let wait_ms = self.rate.as_mut().map_or(0, |rate| rate.wait_ms(1, steady_ms()));
        let Pages { gateway, topic, next_seq, .. } = &self.pages;
        let expiry = async {
            match self.until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = gateway.stopping.wait() => Ok(Turn::End),
            () = expiry => Ok(Turn::End),
            arrived = async {
                if wait_ms > 0 {
                    sleep(Duration::from_millis(wait_ms)).await;
                }
                gateway.backend.arrival(topic, *next_seq).await
            } => match arrived {
                Ok(()) => Ok(Turn::Read),
                Err(ReadError::Unavailable(_)) => Ok(Turn::End),
                Err(error) => Err(error.into()),
            },
            () = sleep(KEEP_ALIVE) => Ok(Turn::KeepAlive),
        }
    }
}

/// The last event of a stream that ends with an error.
fn error_event(error: &ReadError) -> Bytes {
    let data = serde_json::json!({ "error": error.to_string(), "code": ErrorCode::Unavailable });
    format!("event: error\ndata: {data}\n\n").into()
}

fn events_of(chunk: &EventChunk) -> Bytes {
    let mut out = Vec::new();
    for item in chunk.events.items() {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(id_of(item).to_string().as_bytes());
        out.extend_from_slice(b"\ndata: ");
        // One line: records have no line breaks.
        put_event(&mut out, chunk, item);
        out.extend_from_slice(b"\n\n");
    }
    out.into()
}
