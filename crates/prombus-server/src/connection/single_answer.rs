//! Sends one response to the first request of a connection, and closes the connection. Used when a follower answers a request
//! itself instead of relaying the connection.

use super::HEAD_BYTES_MAX;
use super::discarded_body::RequestBody;
use super::timeouts::{RequestPhase, SharedRequestPhase, TimedSocket};
use crate::options::ConnectionLimits;
use axum::body::Body;
use axum::http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::convert::Infallible;
use tokio::io::{AsyncRead, AsyncWrite};

/// Answers the first request with `response` and `Connection: close`. A request that is not valid HTTP gets hyper's error
/// instead.
pub(crate) async fn answer_once<S>(socket: S, limits: &ConnectionLimits, response: Response<Body>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let phase = SharedRequestPhase::new();
    let socket = TokioIo::new(TimedSocket::new(socket, phase.clone(), limits));
    let response = Mutex::new(Some(response));
    let service = service_fn(|request: Request<Incoming>| {
        let (phase, response) = (phase.clone(), response.lock().take());
        async move {
            phase.set(RequestPhase::Request);
            let response = response.unwrap_or_default();
            let (parts, body) = request.into_parts();
            if response.status().as_u16() >= 400 {
                let (_, leftover) = RequestBody::new(body);
                leftover.discard(parts.headers.contains_key(header::EXPECT), false).await;
            }
            phase.set(RequestPhase::Idle);
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // `TimedSocket` enforces the time limits instead.
    http.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).half_close(true).keep_alive(false);
    if let Err(error) = http.serve_connection(socket, service).await {
        tracing::debug!("a response was not sent: {error}");
    }
}
