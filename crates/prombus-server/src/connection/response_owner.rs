//! Ends an HTTP connection whose current response belongs to a token that a reload has withdrawn.
//!
//! A stream checks its token whenever it produces its next piece. But hyper does not ask for a piece while the client reads
//! nothing, and a response of known length is complete before the client has read it. Without this module, the connection of a
//! stalled client would stay open until the write timeout.

use crate::http::ResponseOwner;
use crate::live::{Live, Standing};
use axum::body::Body;
use axum::http::Response;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// How long the client of a withdrawn token may take to read the rest of its response. Then the connection is closed.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// The owner of the current response of a connection.
pub(super) struct CurrentOwner {
    current: Mutex<Current>,
    /// Wakes [`ends`](Self::ends) for a response whose token was withdrawn before the response began.
    withdrawn_early: Notify,
}

struct Current {
    /// The client of the last response; `None` while a request is handled, and after a response that needed no token.
    standing: Option<Standing>,
    /// The number of requests so far.
    request: u64,
}

impl CurrentOwner {
    pub(super) fn new() -> Self {
        let current = Mutex::new(Current { standing: None, request: 0 });
        Self { current, withdrawn_early: Notify::new() }
    }

    /// Records that the next request has begun, so the previous response is complete.
    pub(super) fn begins_request(&self) {
        let mut current = self.current.lock();
        current.standing = None;
        current.request += 1;
    }

    /// Records the response, and who it is for.
    pub(super) fn responds(&self, response: &mut Response<Body>) {
        let Some(ResponseOwner(mut standing)) = response.extensions_mut().remove() else { return };
        if standing.check().is_err() {
            self.withdrawn_early.notify_one();
        }
        self.current.lock().standing = Some(standing);
    }

    /// Whether the token of the current response was withdrawn.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.withdrawn_request().is_some()
    }

    /// The number of the current request, if its token was withdrawn.
    fn withdrawn_request(&self) -> Option<u64> {
        let mut current = self.current.lock();
        let is_withdrawn = current.standing.as_mut().is_some_and(|standing| standing.check().is_err());
        is_withdrawn.then_some(current.request)
    }

    /// Resolves when the connection must end: the token of the current response was withdrawn, and the client has not sent another
    /// request in time.
    pub(super) async fn ends(&self, live: &Live) {
        let mut reloads = live.subscribe();
        loop {
            // Before the first wait too: a request may have been answered before this function subscribed to reloads.
            if let Some(request) = self.withdrawn_request() {
                sleep(END_TIMEOUT).await;
                if self.withdrawn_request() == Some(request) {
                    return;
                }
            }
            // Both are remembered if they happen while this function waits for the timeout.
            tokio::select! {
                () = reloads.changed() => {}
                () = self.withdrawn_early.notified() => {}
            }
        }
    }
}
