//! Reads and discards the rest of a request body that its handler did not read.
//!
//! Many clients write the whole body before they read the response. If the connection is closed meanwhile, they report a network
//! error instead of the response. So the body of a refused request is read to its end, within limits, before the response is
//! sent.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Maximum number of bytes that are discarded.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_PATIENCE: Duration = Duration::from_secs(2);
/// The same if the client's token was withdrawn. Such a connection ends within a second.
const WITHDRAWN_PATIENCE: Duration = Duration::from_millis(250);

struct Shared {
    body: Incoming,
    /// Whether the handler has started to read the body. hyper then sends `100 Continue`.
    has_started: bool,
    /// Whether the body has ended or failed.
    is_over: bool,
}

/// The body, for the handler.
pub(crate) struct RequestBody(Arc<Mutex<Shared>>);

/// The rest of the body, after the handler.
pub(crate) struct Leftover(Arc<Mutex<Shared>>);

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> (Self, Leftover) {
        let is_over = body.is_end_stream();
        let shared = Arc::new(Mutex::new(Shared { body, has_started: false, is_over }));
        (Self(Arc::clone(&shared)), Leftover(shared))
    }
}

impl Shared {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.has_started = true;
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.is_over |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.0.lock().poll(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}

impl Leftover {
    /// Reads and discards the rest. `waits_for_continue`: the client sends its body only after `100 Continue`. If the handler has
    /// not started to read, that client sends no body, so nothing is read here.
    /// `is_withdrawn`: the client's token was withdrawn.
    pub(crate) async fn discard(self, waits_for_continue: bool, is_withdrawn: bool) {
        let patience = if is_withdrawn { WITHDRAWN_PATIENCE } else { DISCARD_PATIENCE };
        let mut read_bytes = 0;
        let discarding = poll_fn(|context| {
            let mut shared = self.0.lock();
            while !shared.is_over && read_bytes < DISCARD_BYTES_MAX {
                match shared.poll(context) {
                    Poll::Ready(Some(Ok(frame))) => read_bytes += frame.data_ref().map_or(0, Bytes::len),
                    Poll::Ready(_) => break,
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(())
        });
        if !waits_for_continue || self.0.lock().has_started {
            let _ = tokio::time::timeout(patience, discarding).await;
        }
    }
}
