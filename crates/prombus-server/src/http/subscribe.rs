//! `GET /subscribe/{topic}`: streams a topic or a pattern as Server-Sent Events. The stream contains the stored events from the
//! start position on, then new events as they are published.
//!
//! There is no group: nothing is acked, and a client that reconnects sends its position. The start position is located before the
//! response begins, so that no later event is missed. The response begins with this position, so that a client that loses the
//! connection before the first event can resume too.

use super::ApiError;
use super::answer::{self, Answered};
use super::call::Call;
use super::event_reader::{EventReader, ReadEvents, ReadRequest, ReaderKind, Until};
use super::last_event_id;
use super::query::Begin;
use super::response_stream::{CHUNK, ResponsePieces, StreamClient, StreamError, body_of};
use crate::clock::{now_ms, steady_ms};
use crate::live::Standing;
use crate::rate_limit::DeliveryBucket;
use axum::http::{HeaderValue, header};
use bytes::Bytes;
use prombus::{PullLimit, ReadError};
use prombus_protocol::{ErrorCode, Start};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How often a comment is sent on an idle stream, so that proxies do not close the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long to wait when the store signals new events but returns none.
const PAUSE: Duration = Duration::from_millis(100);

/// A response that follows the end of a topic or pattern.
struct Tail {
    reader: EventReader,
    /// Whether the start of the stream was written.
    has_begun: bool,
    /// When the token expires; `None` if it never does.
    until: Option<Instant>,
    /// Ends the stream when a reload takes the token's permissions.
    standing: Standing,
    /// The delivery rate limit; events over the rate wait.
    rate: DeliveryBucket,
    /// Whether an error event was sent. The stream then ends.
    has_failed: bool,
}

/// What the stream does next.
enum Turn {
    Read,
    /// The delivery rate may have changed.
    Reloaded,
    KeepAlive,
    End,
}

pub(super) async fn subscribe(call: Call) -> Answered {
    let pattern = call.pattern()?;
    let from = call.query.begin()?.unwrap_or(Begin::At(Start::Latest));
    let begin = match last_event_id::place(&call.headers)?.or(call.query.place("lastEventId")?) {
        Some(place) => Begin::After(place),
        None => from,
    };
    let reader =
        EventReader::open(ReadRequest::of(&call, &pattern)?, &pattern, begin, Until::Stopped).await?;
    let left_ms = call.principal.expires_ms().map(|expires_ms| expires_ms.saturating_sub(now_ms()).max(0));
    let until = left_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms.unsigned_abs())));
    let rate = call.gateway.rates.deliveries();
    let tail = Tail { reader, has_begun: false, until, standing: call.standing, rate, has_failed: false };
    let mut response = answer::typed("text/event-stream", body_of(tail));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Some proxies buffer responses before they pass them on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl ResponsePieces for Tail {
    const ROUTE: &'static str = "/subscribe/{topic}";

    fn client(&mut self) -> &mut StreamClient {
        self.reader.client()
    }

    async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.has_failed {
            return Ok(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            // Tells the client that it is connected, when to reconnect, and its position.
            let position = self.reader.position();
            return Ok(Some(format!("retry: 1000\nid: {position}\n: connected\n\n").into()));
        }
        loop {
            match self.turn().await? {
                Turn::End => return Ok(None),
                Turn::KeepAlive => return Ok(Some(self.keep_alive())),
                Turn::Reloaded => continue,
                Turn::Read => {}
            }
            let events = self.rate.available(steady_ms()).max(1);
            let limit = PullLimit { events, ..CHUNK };
            let taken = match self.reader.read_patiently(limit, Until::Stopped).await {
                Err(StreamError::Withdrawn(_)) => return Ok(None),
                Err(StreamError::Read(error)) if error.is_unreadable() => {
                    tracing::warn!(path = Self::ROUTE, "the stream ends: {error}");
                    self.has_failed = true;
                    return Ok(Some(error_event(&error)));
                }
                Err(StreamError::Read(ReadError::Unavailable(_))) if self.reader.is_pattern() => {
                    return Ok(None);
                }
                read => read?,
            };
            let (events, count) = events_of(&taken);
            self.rate.take(count, steady_ms());
            if count > 0 {
                return Ok(Some(events));
            }
            if !taken.has_more && matches!(self.reader.kind, ReaderKind::Topic(_)) {
                sleep(PAUSE).await;
            }
        }
    }
}

impl Tail {
    async fn turn(&mut self) -> Result<Turn, StreamError> {
        let gateway = Arc::clone(&self.reader.client().gateway);
        // Before the rate is read, so that no reload in between is missed.
        let mut reloads = gateway.live.subscribe();
        self.rate.refresh(&gateway.rates);
        let wait_ms = self.rate.wait_ms(1, steady_ms());
        let until = self.until;
        let expiry = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = gateway.stopping.wait() => Ok(Turn::End),
            () = expiry => Ok(Turn::End),
            _ = self.standing.withdrawn() => Ok(Turn::End),
            () = reloads.changed() => Ok(Turn::Reloaded),
            arrived = async {
                if wait_ms > 0 {
                    sleep(Duration::from_millis(wait_ms)).await;
                }
                self.reader.arrival().await
            } => match arrived {
                Ok(()) => Ok(Turn::Read),
                Err(ReadError::Unavailable(_)) => Ok(Turn::End),
                Err(error) => Err(error.into()),
            },
            () = sleep(KEEP_ALIVE) => Ok(Turn::KeepAlive),
        }
    }

    /// A comment for an idle stream. If the reader may have skipped events, it is followed by the position, so that a client that
    /// reconnects does not make the server read the skipped events again.
    fn keep_alive(&self) -> Bytes {
        if !self.reader.may_skip_events() {
            return Bytes::from_static(b": keep-alive\n\n");
        }
        format!(": keep-alive\nid: {}\n\n", self.reader.position()).into()
    }
}

/// The last event of a stream that ends with an error.
fn error_event(error: &ReadError) -> Bytes {
    let data = ApiError::new(ErrorCode::Unavailable, error).last_line();
    format!("event: error\ndata: {data}\n\n").into()
}

/// The events in SSE format, and their number.
fn events_of(taken: &ReadEvents) -> (Bytes, u32) {
    let (mut out, mut count) = (Vec::new(), 0);
    for (at, item) in taken.wanted() {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(taken.place(at, item).as_bytes());
        out.extend_from_slice(b"\ndata: ");
        // One `data` line is enough: records contain no line breaks.
        taken.put(&mut out, item);
        out.extend_from_slice(b"\n\n");
        count += 1;
    }
    (out.into(), count)
}
