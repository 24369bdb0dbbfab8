//! Stub until the routes are merged.
use crate::gateway::Gateway;
use axum::response::Response;
use std::sync::Arc;

pub(crate) fn router(gateway: Arc<Gateway>) -> axum::Router {
    axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" })).with_state(gateway)
}
pub(crate) fn admit(_: &Gateway, _: &axum::http::request::Parts) -> Result<(), Response> {
    Ok(())
}
pub(crate) fn bearer(_: &axum::http::HeaderMap) -> Result<Option<&str>, &'static str> {
    Ok(None)
}

pub(crate) fn error(status: axum::http::StatusCode, code: prombus_protocol::ErrorCode, message: &str) -> Response {
    let body = serde_json::json!({"error": message, "code": code.as_str()}).to_string();
    let mut response = Response::new(axum::body::Body::from(body));
    *response.status_mut() = status;
    response
}
