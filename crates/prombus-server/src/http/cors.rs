//! Pages of other origins: closed unless `cors_origins` names them.
//!
//! Tokens go in a header that a page has to set itself, so credentials of the browser (cookies) are never allowed.

use super::parameters::ParameterIn;
use super::routes::ROUTES;
use crate::auth::Guard;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// Methods that routes have.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";
/// Headers of requests that any route reads; those of single routes are in the table of routes.
const REQUEST_HEADERS: [&str; 4] = ["accept", "authorization", "content-encoding", "content-type"];
/// Headers of answers that a page may read, besides those that it always may.
const EXPOSED: &str =
    "accept-encoding, allow, etag, location, retry-after, www-authenticate, x-position-id, x-position-seq";
/// How long a browser may remember a preflight.
const MAX_AGE_SECONDS: &str = "600";

/// The value of `Access-Control-Allow-Origin`, if the request is of an origin that may.
pub(super) fn allowed_origin(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if origins.iter().any(|allowed| allowed == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    let text = origin.to_str().ok()?;
    let is_same = |allowed: &String| allowed.trim_end_matches('/').eq_ignore_ascii_case(text);
    origins.iter().any(is_same).then(|| origin.clone())
}

/// Logs an origin that gets no CORS headers.
pub(super) fn note_refused(guard: &Guard, headers: &HeaderMap) {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if let Some(origin) = text(header::ORIGIN) {
        guard.note_without_cors(text(header::HOST).unwrap_or_default(), origin);
    }
}

/// The answer to a preflight of an origin that may.
pub(super) fn preflight(
    method: &Method,
    headers: &HeaderMap,
    allowed: Option<&HeaderValue>,
) -> Option<Response> {
    let is_preflight =
        method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !is_preflight || allowed.is_none() {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let into = response.headers_mut();
    into.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    into.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE_SECONDS));
    if let Some(names) = allowed_headers(headers) {
        into.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    Some(response)
}

/// Those that the page wants to send and routes look at. All of `x-` cannot be named otherwise.
fn allowed_headers(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?.to_str().ok()?;
    let is_allowed = |name: &&str| {
        let name = name.to_ascii_lowercase();
        name.starts_with("x-") || REQUEST_HEADERS.contains(&name.as_str()) || is_header_of_a_route(&name)
    };
    let names: Vec<&str> = wanted.split(',').map(str::trim).filter(is_allowed).collect();
    if names.is_empty() { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
}

fn is_header_of_a_route(name: &str) -> bool {
    let parameters = ROUTES.iter().flat_map(|route| route.parameters);
    let mut headers = parameters.filter(|parameter| parameter.place == ParameterIn::Header);
    headers.any(|header| header.name.eq_ignore_ascii_case(name))
}

/// What every answer has where origins are configured.
pub(super) fn put_headers(origins: &[String], allowed: Option<HeaderValue>, into: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    if !origins.iter().any(|origin| origin == "*") {
        // Also on answers to others: a cache must not give them to a page that may.
        into.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = allowed {
        into.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        into.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}
