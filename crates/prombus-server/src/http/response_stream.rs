//! Streamed responses. Only one piece is in memory at a time; the next one is read when the client has taken the previous one.

use super::ApiError;
use super::call::Call;
use crate::buffer_budget::Share;
use crate::clock::now_ms;
use crate::gateway::Gateway;
use crate::live::{Standing, Withdrawn};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{once, try_unfold};
use futures_util::{StreamExt as _, TryStream, TryStreamExt as _};
use prombus::{PullLimit, ReadError};
use prombus_protocol::ErrorCode;
use std::sync::Arc;
use thiserror::Error;

/// Size of a piece while the buffer budget is used up.
const SMALL_BYTES: usize = 16 * 1024;
/// Size of a piece.
pub(super) const CHUNK: PullLimit = PullLimit { events: u32::MAX, bytes: 256 * 1024 };

/// Why a streamed response failed.
#[derive(Debug, Error)]
pub(super) enum StreamError {
    #[error("the token has expired")]
    Expired,
    #[error(transparent)]
    Withdrawn(#[from] Withdrawn),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl StreamError {
    /// The error response, for a response that has not begun.
    pub(super) fn into_answer(self) -> ApiError {
        match self {
            Self::Read(error) => error.into(),
            Self::Expired | Self::Withdrawn(_) => ApiError::new(ErrorCode::BadToken, self),
        }
    }
}

/// The client of a streamed response, and the bytes that wait for it.
pub(super) struct StreamClient {
    pub(super) gateway: Arc<Gateway>,
    /// Whether the client still has its permissions.
    standing: Standing,
    /// Bytes that the client has not taken yet, as part of the buffer budget of all connections.
    share: Share,
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.hold(0);
    }
}

impl StreamClient {
    pub(super) fn new(call: &Call) -> Self {
        Self { gateway: Arc::clone(&call.gateway), standing: call.standing.clone(), share: Share::default() }
    }

    /// Another instance for the same caller.
    pub(super) fn another(&self) -> Self {
        Self { gateway: Arc::clone(&self.gateway), standing: self.standing.clone(), share: Share::default() }
    }

    /// Records how many bytes wait for the client.
    fn hold(&mut self, bytes: usize) {
        self.gateway.budget.set(&mut self.share, bytes);
    }

    /// Reduces the limit while the buffer budget is used up, so that every response continues in small pieces.
    pub(super) fn within_budget(&self, limit: PullLimit) -> PullLimit {
        let has_room = self.gateway.budget.has_room();
        PullLimit { bytes: if has_room { limit.bytes } else { limit.bytes.min(SMALL_BYTES) }, ..limit }
    }

    /// Checks that the token has not expired, and that no reload has taken its permissions.
    pub(super) fn check_token(&mut self) -> Result<(), StreamError> {
        self.standing.check()?;
        if self.standing.principal().is_expired(now_ms()) { Err(StreamError::Expired) } else { Ok(()) }
    }
}

/// A response that is produced in pieces.
pub(super) trait ResponsePieces: Send + 'static {
    /// The route, for the log.
    const ROUTE: &'static str;

    /// The client that gets the response.
    fn client(&mut self) -> &mut StreamClient;

    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, StreamError>> + Send;
}

/// A body of these pieces. An error aborts the response, so that the client does not take it for complete.
pub(super) fn body_of<P: ResponsePieces>(pieces: P) -> Body {
    Body::from_stream(stream_of(pieces))
}

/// Like [`body_of`], but produces the first piece before the response begins, so that a failure there is an error response.
pub(super) async fn checked_body_of<P: ResponsePieces>(mut pieces: P) -> Result<Body, ApiError> {
    let first = pieces.next().await.map_err(StreamError::into_answer)?;
    let Some(first) = first else { return Ok(Body::empty()) };
    pieces.client().hold(first.len());
    let first = once(async { Ok::<_, StreamError>(first) });
    Ok(Body::from_stream(first.chain(stream_of(pieces).into_stream())))
}

fn stream_of<P: ResponsePieces>(pieces: P) -> impl TryStream<Ok = Bytes, Error = StreamError> + Send {
    try_unfold(pieces, async |mut pieces| match pieces.next().await {
        Ok(Some(bytes)) => {
            // A reload may have withdrawn the token since the piece was read.
            pieces.client().check_token()?;
            // The piece counts against the budget until the next one is requested.
            pieces.client().hold(bytes.len());
            // A fast client must not monopolize the thread.
            tokio::task::consume_budget().await;
            Ok(Some((bytes, pieces)))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            tracing::warn!(path = P::ROUTE, "the response was aborted: {error}");
            Err(error)
        }
    })
}
