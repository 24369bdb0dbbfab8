//! Serves an accepted socket: TLS if configured, then HTTP, and WebSocket after an upgrade request.

mod discarded_body;
mod prefixed_socket;
mod reset_on_close;
mod response_owner;
mod single_answer;
mod timeouts;

pub(crate) use prefixed_socket::PrefixedSocket;
pub(crate) use reset_on_close::{ResetOnClose, ResetSwitch};
pub(crate) use single_answer::answer_once;

use crate::clock::now_ms;
use crate::gateway::Gateway;
use crate::http::{self, ApiError, ResponseOwner};
use crate::metrics::RouteMetrics;
use crate::peer::Peer;
use crate::ws::{Session, WebSocket, upgrade};
use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use discarded_body::RequestBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use response_owner::CurrentOwner;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;
use timeouts::{RequestPhase, SharedRequestPhase, TimedSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// Maximum size of a request's head.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves a socket until it ends.
pub(crate) async fn serve(
    gateway: Arc<Gateway>,
    router: Router,
    socket: TcpStream,
    peer: Arc<Peer>,
    tls: Option<TlsAcceptor>,
) {
    // Responses and events are already written in batches, so Nagle's algorithm would only add latency.
    let _ = socket.set_nodelay(true);
    match tls {
        None => serve_http(gateway, router, socket, peer).await,
        Some(acceptor) => {
            let patience = gateway.options.connections.head_timeout;
            match tokio::time::timeout(patience, acceptor.accept(socket)).await {
                Ok(Ok(socket)) => serve_http(gateway, router, socket, peer).await,
                Ok(Err(error)) => tracing::debug!("{}: TLS handshake failed: {error}", peer.ends.remote),
                Err(_) => tracing::debug!("{}: TLS handshake timed out", peer.ends.remote),
            }
        }
    }
}

/// Serves HTTP and WebSocket over a socket until it ends.
pub(crate) async fn serve_http<S>(gateway: Arc<Gateway>, router: Router, socket: S, peer: Arc<Peer>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &gateway.options.connections;
    let phase = SharedRequestPhase::new();
    let socket = TokioIo::new(TimedSocket::new(socket, phase.clone(), limits));
    let owner = CurrentOwner::new();
    let service = service_fn(|request: Request<Incoming>| {
        let (gateway, router, peer) = (Arc::clone(&gateway), router.clone(), Arc::clone(&peer));
        let (phase, owner) = (phase.clone(), &owner);
        async move {
            owner.begins_request();
            phase.set(RequestPhase::Request);
            let mut response = answer::<S>(gateway, router, peer, request).await;
            phase.set(RequestPhase::Idle);
            owner.responds(&mut response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // `TimedSocket` enforces the time limits instead.
    http.header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX).half_close(true);
    let mut connection = pin!(http.serve_connection(socket, service).with_upgrades());
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = owner.ends(&gateway.live) => {
            peer.reset_if_relayed();
            return tracing::debug!("{}: closed: the token of the last response was withdrawn", peer.ends.remote);
        }
        () = gateway.stopping.wait() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(limits.drain_timeout, connection).await {
                Ok(ended) => ended,
                Err(_) => return tracing::debug!("{}: a response did not end in time", peer.ends.remote),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("{}: {error}", peer.ends.remote);
    }
    if owner.is_withdrawn() {
        peer.reset_if_relayed();
    }
}

async fn answer<S>(
    gateway: Arc<Gateway>,
    router: Router,
    peer: Arc<Peer>,
    mut request: Request<Incoming>,
) -> Response<Body>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let started = Instant::now();
    let upgrading = upgrade::is_wanted(&request).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(Arc::clone(&peer));
    let (body, leftover) = RequestBody::new(body);
    let waits_for_continue = parts.headers.contains_key(header::EXPECT);
    let response = match http::admit(&gateway.live.current().guard, peer.ends, &parts) {
        Err(refused) => {
            let counters = gateway.metrics.requests.unmatched(parts.method.as_str());
            counters.count(refused.status().as_u16(), started.elapsed());
            refused
        }
        Ok(()) => match upgrading {
            Some(upgrading) => {
                let counters = counters_of_upgrade(&gateway, &parts);
                let response =
                    open::<S>(&gateway, &peer, &parts, upgrading).unwrap_or_else(|refused| *refused);
                counters.count(response.status().as_u16(), started.elapsed());
                response
            }
            None => {
                let request = Request::from_parts(parts, Body::new(body));
                router.oneshot(request).await.unwrap_or_else(|never| match never {})
            }
        },
    };
    if response.status().as_u16() >= 400 {
        let is_withdrawn =
            response.extensions().get::<ResponseOwner>().is_some_and(ResponseOwner::is_withdrawn);
        leftover.discard(waits_for_continue, is_withdrawn).await;
    }
    response
}

/// The counters of an upgrade request.
fn counters_of_upgrade(gateway: &Gateway, parts: &Parts) -> Arc<RouteMetrics> {
    let requests = &gateway.metrics.requests;
    match (parts.uri.path(), &parts.method) {
        ("/", &Method::GET) => requests.route("/", "GET"),
        ("/ws", &Method::GET) => requests.route("/ws", "GET"),
        (_, method) => requests.unmatched(method.as_str()),
    }
}

fn open<S>(
    gateway: &Arc<Gateway>,
    peer: &Arc<Peer>,
    parts: &Parts,
    upgrading: OnUpgrade,
) -> Result<Response<Body>, Box<Response<Body>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refused = |error: ApiError| Box::new(error.into_response());
    let accepted = upgrade::accept(parts, gateway.options.has_permessage_deflate).map_err(|bad| {
        let mut response = refused(ApiError::bad_request(bad).with_status(bad.status));
        if bad.status == StatusCode::UPGRADE_REQUIRED {
            response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        }
        response
    })?;
    let version = gateway.live.version();
    // A browser cannot send the `Authorization` header. Other clients can, and then need no AUTH frame.
    let principal = match http::bearer(&parts.headers).map_err(refused)? {
        None => None,
        Some(token) => {
            let principal = gateway.live.current().auth.authenticate(Some(token), now_ms());
            Some(principal.map_err(|error| refused(error.into()))?)
        }
    };
    let session = Session::new(Arc::clone(gateway), Arc::clone(peer), principal, version);
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move {
        let upgraded = match upgrading.await {
            Ok(upgraded) => upgraded,
            Err(error) => return tracing::debug!("an upgrade failed: {error}"),
        };
        match upgraded.downcast::<TokioIo<TimedSocket<S>>>() {
            Ok(whole) => {
                let socket = whole.io.into_inner().into_inner();
                WebSocket::new(socket, &whole.read_buf, gateway, session, accepted.deflate).run().await;
            }
            Err(_) => tracing::error!("an upgraded connection has an unknown socket"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().extend(accepted.headers.into_iter().flatten());
    Ok(response)
}
