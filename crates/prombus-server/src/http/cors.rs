//! CORS: pages of other origins have access only if `cors_origins` lists the origin.
//!
//! A page sends its token in a header that it sets itself. Credentials of the browser (cookies) are never allowed.

use super::parameters::ParameterIn;
use super::routes::ROUTES;
use crate::auth::Guard;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// The methods of the routes.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";
/// Request headers that every route may read. The table of routes lists the headers of single routes.
const REQUEST_HEADERS: [&str; 4] = ["accept", "authorization", "content-encoding", "content-type"];
/// Response headers that a page may read, in addition to those that browsers always expose.
const EXPOSED: &str =
    "accept-encoding, allow, etag, location, retry-after, www-authenticate, x-position-id, x-position-seq";
/// How long a browser may cache the response to a preflight.
const MAX_AGE_SECONDS: &str = "600";

/// The value of `Access-Control-Allow-Origin`, if the origin of the request is allowed.
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

/// The response to a preflight from an allowed origin; `None` for all other requests.
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

/// Those of the requested headers that begin with `x-` or that a route reads. The response names each of them, because CORS has
/// no wildcard for `x-` headers.
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

/// Adds the CORS headers to a response, if origins are configured.
pub(super) fn put_headers(origins: &[String], allowed: Option<HeaderValue>, into: &mut HeaderMap) {
    if origins.is_empty() {
        return;
    }
    if !origins.iter().any(|origin| origin == "*") {
        // Responses to other origins get this header too: a cache must not serve them to a page of an allowed origin.
        into.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = allowed {
        into.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        into.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}
