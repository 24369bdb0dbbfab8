//! Ends an HTTP connection whose streamed response belongs to a token that a reload has withdrawn.
//!
//! A stream checks its token whenever it produces its next piece. hyper does not ask for a piece while the client reads nothing,
//! so this check alone would leave the connection of a stalled client open until the write timeout.

use crate::http::StreamOwner;
use crate::live::{Standing, Withdrawn};
use axum::body::Body;
use axum::http::Response;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long a stream whose token was withdrawn may take to end by itself. Then the connection is closed.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// The client whose stream is the current response of a connection.
pub(super) struct StreamingClient(watch::Sender<Option<Standing>>);

impl StreamingClient {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Records that the next request has begun, so the previous response is complete.
    pub(super) fn begins_request(&self) {
        self.0.send_if_modified(|owner| owner.take().is_some());
    }

    /// Records the response. If it is a stream, it belongs to a client.
    pub(super) fn responds(&self, response: &mut Response<Body>) {
        if let Some(StreamOwner(standing)) = response.extensions_mut().remove() {
            self.0.send_replace(Some(standing));
        }
    }

    /// Whether the token of the current stream was withdrawn.
    pub(super) fn is_withdrawn(&self) -> bool {
        let owner = self.0.borrow().clone();
        owner.is_some_and(|mut standing| standing.check().is_err())
    }

    /// Resolves when the token of the current stream was withdrawn and the stream has not ended in time.
    pub(super) async fn withdrawn(&self) -> Withdrawn {
        let mut owners = self.0.subscribe();
        loop {
            let owner = owners.borrow_and_update().clone();
            let ends = async {
                match owner {
                    Some(mut standing) => {
                        let withdrawn = standing.withdrawn().await;
                        sleep(END_TIMEOUT).await;
                        withdrawn
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // First: the next request may have begun at the same time.
                biased;
                // The sender is `self`, so no error is possible.
                _ = owners.changed() => {}
                withdrawn = ends => return withdrawn,
            }
        }
    }
}
