//! Serves a connection that a follower accepted. The follower either answers the first request itself and closes the connection,
//! or relays the whole connection to the leader.

use super::destination::{Destination, NO_LEADER};
use super::duty::{Duty, Leading};
use super::state::SharedState;
use crate::connection::{HEAD_BYTES_MAX, PrefixedSocket, answer_once};
use crate::http::{self, ApiError, LeaderView, OwnRoute};
use crate::peer::Ends;
use crate::relay::{FirstRequest, ReadHead, Splice};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// How a follower's handling of a connection ended.
pub(super) enum Outcome<S> {
    /// The connection has ended.
    Done,
    /// This process has become the leader and must serve the connection. The socket contains the bytes that were read.
    Lead(Arc<Leading>, PrefixedSocket<S>),
}

/// Serves a connection whose first bytes, `read`, were already read.
pub(super) async fn serve<S>(shared: &SharedState, mut socket: S, read: Vec<u8>, ends: Ends) -> Outcome<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = &shared.parts.options.connections;
    let reading = FirstRequest::read(&mut socket, read, HEAD_BYTES_MAX);
    let reading = tokio::select! {
        reading = timeout(limits.head_timeout, reading) => reading,
        // An incomplete request has no effect, so the client can safely send it again elsewhere.
        () = shared.stopping.wait() => return Outcome::Done,
    };
    let request = match reading {
        Ok(Ok(ReadHead::Request(request))) => request,
        Ok(Ok(ReadHead::Bad(read))) => {
            let response = ApiError::bad_request("the request is not valid HTTP").into_response();
            count_refusal(shared, "", &response, Instant::now());
            answer_once(PrefixedSocket::new(read, socket), limits, response).await;
            return Outcome::Done;
        }
        Ok(Ok(ReadHead::Gone) | Err(_)) | Err(_) => {
            tracing::debug!("{}: no complete request in time", ends.remote);
            return Outcome::Done;
        }
    };
    let started = Instant::now();
    let FirstRequest { mut read, head_bytes, mut parts } = *request;
    let answer = answer_here(shared, &parts, ends);
    let destination = match answer {
        Some(response) => {
            answer_once(PrefixedSocket::new(read, socket), limits, response).await;
            return Outcome::Done;
        }
        None => {
            // To save memory while the connection waits for the leader, keeps only the bytes that were read and the `Origin`
            // header.
            read.shrink_to_fit();
            parts.headers = only_origin(&parts.headers);
            Destination::find(shared, ends).await
        }
    };
    match destination {
        Destination::Lead(leading) => return Outcome::Lead(leading, PrefixedSocket::new(read, socket)),
        Destination::None(error) => {
            let response = http::refuse(error, &parts, &shared.parts);
            count_refusal(shared, parts.method.as_str(), &response, started);
            answer_once(PrefixedSocket::new(read, socket), limits, response).await;
        }
        Destination::Relay(leader, hop) => {
            drop(parts);
            let _relayed = shared.metrics.relayed();
            let mut duties = shared.duties.clone();
            let leader_changed = async {
                // No error is possible: the sender of the duties lives as long as the server.
                let _ = duties.wait_for(|duty| duty.ends_relay_to(&leader)).await;
            };
            let splice = Splice::new(socket, read, head_bytes, hop, limits);
            splice.run(leader_changed, &shared.stopping, limits.drain_timeout).await;
        }
    }
    Outcome::Done
}

/// The response to a request that is refused, or that is for a route of this gateway itself; `None` if the connection must be
/// relayed.
fn answer_here(shared: &SharedState, parts: &Parts, ends: Ends) -> Option<Response> {
    let started = Instant::now();
    if let Err(refused) = http::admit(&shared.parts.live.current().guard, ends, parts) {
        count_refusal(shared, parts.method.as_str(), &refused, started);
        return Some(refused);
    }
    let own = OwnRoute::of(parts)?;
    Some(own.answer(parts, &shared.parts, &view(shared)))
}

/// Counts a request that this gateway refuses before a route is known. `method`: empty if it could not be read.
fn count_refusal(shared: &SharedState, method: &str, response: &Response, started: Instant) {
    let counters = shared.parts.metrics.requests.unmatched(method);
    counters.count(response.status().as_u16(), started.elapsed());
}

/// Drops all headers except `Origin`, the only one that the CORS headers of an error response depend on.
fn only_origin(headers: &HeaderMap) -> HeaderMap {
    let origin = headers.get(header::ORIGIN);
    origin.map(|origin| (header::ORIGIN, origin.clone())).into_iter().collect()
}

fn view(shared: &SharedState) -> LeaderView {
    let reason = || shared.stopping.reason().to_string();
    let duty = shared.duties.borrow().clone();
    let (address, reached) = match duty {
        Duty::Following(Some(leader)) => (Some(leader.endpoint.address.clone()), leader.reached()),
        // `Leading` occurs here only if the role has just changed: the next request is served as leader.
        Duty::Leading(_) | Duty::Following(None) => (None, Err(NO_LEADER.to_owned())),
    };
    let reached = if shared.stopping.is_stopping() { Err(reason()) } else { reached };
    LeaderView { address, reached }
}
