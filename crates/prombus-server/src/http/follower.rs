//! The responses that a follower of a shared store sends itself: its own routes, and errors. All other requests are relayed to
//! the leader.

use super::access::check_admin_token;
use super::answer::{self, Answered};
use super::route::Verb;
use super::{ApiError, cors, exposition};
use crate::auth::Authenticator;
use crate::gateway::GatewayParts;
use crate::metrics;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use prombus_protocol::ErrorCode;
use serde::Serialize;
use std::time::Instant;

/// A route that a follower serves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnRoute {
    Health,
    Readiness,
    Metrics,
}

/// What a follower knows of the leader.
pub(crate) struct LeaderView {
    /// `host:port`; `None` while no leader is known.
    pub(crate) address: Option<String>,
    /// Whether the leader is reachable; the reason if it is not.
    pub(crate) reached: Result<(), String>,
}

#[derive(Serialize)]
struct FollowerStatus<'a> {
    status: &'static str,
    role: &'static str,
    leader: Option<&'a str>,
}

impl OwnRoute {
    /// The route of a request, if a follower serves it.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        let path = parts.uri.path();
        [Self::Health, Self::Readiness, Self::Metrics].into_iter().find(|route| route.path() == path)
    }

    fn path(self) -> &'static str {
        match self {
            Self::Health => "/healthz",
            Self::Readiness => "/readyz",
            Self::Metrics => "/metrics",
        }
    }

    /// The response to a request.
    pub(crate) fn answer(self, parts: &Parts, gateway: &GatewayParts, leader: &LeaderView) -> Response {
        let started = Instant::now();
        let response = self.respond(parts, gateway, leader);
        let requests = &gateway.metrics.requests;
        let counters = match parts.method {
            Method::GET | Method::HEAD => requests.route(self.path(), Verb::Get.method()),
            _ => requests.unmatched(parts.method.as_str()),
        };
        counters.count(response.status().as_u16(), started.elapsed());
        response
    }

    fn respond(self, parts: &Parts, gateway: &GatewayParts, leader: &LeaderView) -> Response {
        let allowed = cors::allowed_origin(&gateway.live.current().cors_origins, &parts.headers);
        if let Some(response) = cors::preflight(&parts.method, &parts.headers, allowed.as_ref()) {
            return finish(response, parts, gateway);
        }
        let answered = match self {
            _ if !matches!(parts.method, Method::GET | Method::HEAD) => Err(wrong_method(&parts.method)),
            Self::Health => status(leader),
            // During a takeover and while the leader is unreachable, this gateway cannot serve clients.
            Self::Readiness => match &leader.reached {
                Ok(()) => status(leader),
                Err(reason) => Err(ApiError::new(ErrorCode::Unavailable, reason)),
            },
            Self::Metrics => metrics(&gateway.live.current().auth, parts, gateway),
        };
        let mut response = answered.unwrap_or_else(ApiError::into_response);
        if response.status().as_u16() == 405 {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
        }
        finish(response, parts, gateway)
    }
}

fn status(leader: &LeaderView) -> Answered {
    answer::json(&FollowerStatus { status: "ok", role: "follower", leader: leader.address.as_deref() })
}

fn metrics(auth: &Authenticator, parts: &Parts, gateway: &GatewayParts) -> Answered {
    check_admin_token(auth, &parts.headers)?;
    let shared_store = gateway.shared_store.as_deref();
    let shared_store = shared_store.ok_or_else(|| ApiError::internal("the store is not shared"))?;
    let render = |format| metrics::render_follower(&gateway.metrics, shared_store, format);
    Ok(exposition::answer(&parts.headers, render))
}

fn wrong_method(method: &Method) -> ApiError {
    let message = format!("{method} is not allowed here; the Allow header lists the methods");
    ApiError::new(ErrorCode::MethodNotAllowed, message)
}

/// An error response, with the headers that every response has.
pub(crate) fn refuse(error: ApiError, parts: &Parts, gateway: &GatewayParts) -> Response {
    finish(error.into_response(), parts, gateway)
}

fn finish(mut response: Response, parts: &Parts, gateway: &GatewayParts) -> Response {
    let origins = &gateway.live.current().cors_origins;
    let allowed = cors::allowed_origin(origins, &parts.headers);
    cors::put_headers(origins, allowed, response.headers_mut());
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
