//! The HTTP routes: everything on the port except the WebSocket upgrade.
//!
//! `routes.rs` contains the table of routes. The router, the authentication of each request and `/openapi.json` are all derived
//! from it, so they cannot differ. A handler gets an authenticated [`Call`] and checks access to the topic.
//!
//! Requests are logged by their route, never by URL: query strings may contain tickets. Bodies are payloads and are not logged.

mod access;
mod answer;
mod backup;
mod body_rate;
mod call;
mod cors;
mod dead_letters;
mod entity_tag;
mod envelope;
mod error;
mod event_headers;
mod event_reader;
mod export;
mod exposition;
mod fields;
mod follower;
mod group_admin;
mod groups;
mod idempotency_header;
mod json_body;
mod last_event_id;
mod list_query;
mod ndjson_lines;
mod openapi;
mod ops;
mod parameters;
mod pattern_reader;
mod publish;
mod query;
mod repair;
mod replay;
mod request_body;
mod request_decompression;
mod response_compression;
mod response_owner;
mod response_stream;
mod reverse_reader;
mod route;
mod routes;
mod settings;
mod state;
mod subscribe;
#[cfg(test)]
mod tests;
mod tickets;
mod topic_reader;
mod topics;

pub(crate) use access::{admit, bearer};
pub(crate) use error::ApiError;
pub(crate) use follower::{LeaderView, OwnRoute, refuse};
pub(crate) use publish::ADDRESSEE_FORBIDDEN;
pub(crate) use response_owner::ResponseOwner;

use crate::gateway::Gateway;
use crate::metrics::RouteMetrics;
use access::Access;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use call::Call;
use prombus_protocol::ErrorCode;
use route::{Route, Verb};
use routes::ROUTES;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// All routes. For each request, the caller must have called [`admit`] and inserted an `Arc<Peer>` as extension.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    let paths: BTreeSet<&str> = ROUTES.iter().map(|route| route.path).collect();
    let mut router = Router::new();
    for path in paths {
        let mut methods = MethodRouter::new();
        for route in ROUTES.iter().filter(|route| route.path == path) {
            let counters = gateway.metrics.requests.route(route.path, route.verb.method());
            let serve = move |State(gateway), request| {
                let counters = Arc::clone(&counters);
                async move { Counted::mark(serve(route, gateway, request).await, counters) }
            };
            methods = methods.on(route.verb.filter(), serve);
            if route.is_compressed {
                methods = response_compression::compressed(methods);
            }
        }
        router = router.route(path, methods.fallback(wrong_method));
    }
    let around = from_fn_with_state(Arc::clone(&gateway), around);
    router.fallback(unknown_path).layer(around).with_state(gateway)
}

async fn serve(route: &'static Route, gateway: Arc<Gateway>, request: Request) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let (owner, answered) = match Call::new(route.access, route.parameters, gateway, request).await {
        Ok(call) => {
            let standing = call.standing.clone();
            let mut answered = (route.handler)(call).await;
            // An open route needs no token, so no reload can withdraw it.
            let owner = (route.access != Access::Open).then_some(ResponseOwner(standing));
            // A reload may have withdrawn the token while the handler was reading. The effects of other requests have happened.
            if route.verb == Verb::Get
                && let Some(owner) = &owner
            {
                answered = owner.check().and(answered);
            }
            (owner, answered)
        }
        Err(refused) => (None, Err(refused)),
    };
    let mut response = answered.unwrap_or_else(ApiError::into_response);
    if let Some(owner) = owner {
        response.extensions_mut().insert(owner);
    }
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    tracing::debug!(%method, path = route.path, status = response.status().as_u16(), ms, "request");
    response
}

/// Marks a response with the counters of its route. The status that is counted is only known outside all layers.
#[derive(Clone)]
struct Counted(Arc<RouteMetrics>);

impl Counted {
    fn mark(mut response: Response, counters: Arc<RouteMetrics>) -> Response {
        response.extensions_mut().insert(Self(counters));
        response
    }
}

/// Answers CORS preflights, adds the headers that every response has, and counts the request.
async fn around(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let live = gateway.live.current();
    let origins = &live.cors_origins;
    let allowed = cors::allowed_origin(origins, request.headers());
    if allowed.is_none() {
        cors::note_refused(&live.guard, request.headers());
    }
    let mut response = match cors::preflight(request.method(), request.headers(), allowed.as_ref()) {
        Some(response) => response,
        None => next.run(request).await,
    };
    let counters = match response.extensions_mut().remove::<Counted>() {
        Some(Counted(counters)) => counters,
        None => gateway.metrics.requests.unmatched(method.as_str()),
    };
    counters.count(response.status().as_u16(), started.elapsed());
    if response.status() == StatusCode::NOT_ACCEPTABLE {
        // The compression layer responds 406 without a body.
        let error = ApiError::bad_request("no acceptable Content-Encoding; supported: gzip, zstd, identity");
        response = error.with_status(StatusCode::NOT_ACCEPTABLE).into_response();
    }
    cors::put_headers(origins, allowed, response.headers_mut());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn wrong_method(request: Request) -> Response {
    tracing::debug!(method = %request.method(), status = 405, "request with an unsupported method");
    let message = format!("{} is not allowed here; the Allow header lists the methods", request.method());
    ApiError::new(ErrorCode::MethodNotAllowed, message).into_response()
}

async fn unknown_path(request: Request) -> Response {
    if request.uri().path() == "/ws" {
        let error = ApiError::bad_request("this is the WebSocket endpoint: connect with ws:// or wss://");
        let mut response = error.with_status(StatusCode::UPGRADE_REQUIRED).into_response();
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        return response;
    }
    tracing::debug!(method = %request.method(), status = 404, "request for an unknown path");
    ApiError::not_found("unknown path; /openapi.json lists all routes").into_response()
}
