//! Reads request bodies, with limits on size and time. Their memory counts against the buffer budget of all connections.

use super::ApiError;
use super::body_rate::BodyRate;
use super::request_decompression::BodyDecoder;
use crate::buffer_budget::Share;
use crate::gateway::Gateway;
use crate::live::Standing;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use prombus_protocol::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a request waits for room in the buffer budget.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// The first bytes that a request buffers, up to this number, do not count against the budget.
const FREE_BYTES: usize = 64 * 1024;

/// Reads a body piece by piece, decompressed.
pub(super) struct BodyReader {
    body: Body,
    decoder: Option<BodyDecoder>,
    /// Received bytes that are not decompressed yet.
    compressed: Bytes,
    /// Maximum size of the body, both as the client sends it and decompressed.
    limit_bytes: usize,
    /// Bytes that have arrived, as the client sent them.
    received_bytes: usize,
    /// Bytes that were returned, after decompression.
    read_bytes: usize,
    /// How long the next piece may take.
    pause_max: Duration,
    rate: BodyRate,
    /// Whether the sender still has its permissions.
    standing: Standing,
}

impl BodyReader {
    /// If the `Content-Length` is over the limit, refuses the body without reading it.
    pub(super) fn new(
        gateway: &Gateway,
        headers: &HeaderMap,
        body: Body,
        limit_bytes: usize,
        standing: Standing,
    ) -> Result<Self, ApiError> {
        let limit_bytes = limit_bytes.min(gateway.options.connections.max_body_bytes);
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|it| it > limit_bytes as u64) {
            return Err(too_large(limit_bytes));
        }
        let limits = &gateway.options.connections;
        Ok(Self {
            body,
            decoder: BodyDecoder::of(headers)?,
            compressed: Bytes::new(),
            limit_bytes,
            received_bytes: 0,
            read_bytes: 0,
            pause_max: limits.head_timeout,
            rate: BodyRate::new(limits.min_body_bytes_per_second),
            standing,
        })
    }

    /// Memory that the decompression uses.
    pub(super) fn decoder_bytes(&self) -> usize {
        self.decoder.as_ref().map_or(0, BodyDecoder::memory_bytes)
    }

    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let data = match &mut self.decoder {
                Some(decoder) if !self.compressed.is_empty() || decoder.may_have_more() => {
                    decoder.decode(&mut self.compressed)?
                }
                _ => match (self.receive().await?, self.decoder.take()) {
                    (Some(received), None) => received,
                    (Some(received), decoder) => {
                        (self.compressed, self.decoder) = (received, decoder);
                        continue;
                    }
                    (None, Some(decoder)) if self.received_bytes > 0 => decoder.finish()?,
                    (None, _) => return Ok(None),
                },
            };
            if data.is_empty() {
                continue;
            }
            self.read_bytes = self.read_bytes.saturating_add(data.len());
            if self.read_bytes > self.limit_bytes {
                return Err(too_large(self.limit_bytes));
            }
            return Ok(Some(data));
        }
    }

    /// The next piece as the client sent it; `None` at the end. Fails if a reload withdraws the sender's token while it waits.
    async fn receive(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let asked_at = Instant::now();
            let frame = tokio::select! {
                biased;
                frame = timeout(self.pause_max, self.body.frame()) => frame,
                withdrawn = self.standing.withdrawn() => return Err(withdrawn.into()),
            };
            let frame = frame.map_err(|_| {
                let message = format!("no body data arrived for {} s", self.pause_max.as_secs_f32());
                ApiError::bad_request(message).with_status(StatusCode::REQUEST_TIMEOUT)
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame =
                frame.map_err(|error| ApiError::bad_request(format!("the body is incomplete: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if !self.rate.is_enough(asked_at.elapsed(), data.len()) {
                let least = self.rate.min_bytes_per_second();
                let message = format!("the body arrives too slowly: the minimum is {least} bytes per second");
                return Err(ApiError::bad_request(message).with_status(StatusCode::REQUEST_TIMEOUT));
            }
            if data.is_empty() {
                continue;
            }
            self.received_bytes = self.received_bytes.saturating_add(data.len());
            if self.received_bytes > self.limit_bytes {
                return Err(too_large(self.limit_bytes));
            }
            return Ok(Some(data));
        }
    }

    /// The whole body.
    pub(super) async fn whole(mut self, held: &mut HeldBytes) -> Result<Bytes, ApiError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let Some(second) = self.next().await? else { return Ok(first) };
        let mut whole = Vec::from(first);
        let mut next = Some(second);
        while let Some(data) = next {
            held.grow_to(whole.len() + data.len() + self.decoder_bytes()).await?;
            whole.extend_from_slice(&data);
            next = self.next().await?;
        }
        Ok(whole.into())
    }
}

fn too_large(limit_bytes: usize) -> ApiError {
    ApiError::new(ErrorCode::TooLarge, format!("the body is too large: the maximum is {limit_bytes} bytes"))
}

/// A request's share of the buffer budget; released on drop.
pub(super) struct HeldBytes {
    gateway: Arc<Gateway>,
    share: Share,
    /// The size of `share`.
    bytes: usize,
}

impl HeldBytes {
    pub(super) fn new(gateway: &Arc<Gateway>) -> Self {
        Self { gateway: Arc::clone(gateway), share: Share::default(), bytes: 0 }
    }

    /// Reserves memory for `bytes` in total. Waits for room in the budget; nothing is read from the client meanwhile.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let wanted = bytes.saturating_sub(FREE_BYTES);
        if wanted <= self.bytes {
            return Ok(());
        }
        // The wait is short, because a waiting request holds memory that others may be waiting for.
        let until = Instant::now() + ROOM_PATIENCE;
        while !self.gateway.budget.has_room() {
            if Instant::now() >= until {
                let message = "too many large requests at the same time: try again later";
                return Err(ApiError::new(ErrorCode::Unavailable, message));
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.bytes = wanted;
        self.gateway.budget.set(&mut self.share, wanted);
        Ok(())
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.gateway.budget.set(&mut self.share, 0);
    }
}
