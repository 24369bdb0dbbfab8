//! `Last-Event-ID`: the header that an `EventSource` sends when it reconnects.

use super::ApiError;
use super::query::ResumePoint;
use axum::http::HeaderMap;

const NAME: &str = "last-event-id";

/// Whether this is a reconnect. An empty header counts as absent.
pub(super) fn is_sent(headers: &HeaderMap) -> bool {
    headers.get(NAME).is_some_and(|id| !id.as_bytes().trim_ascii().is_empty())
}

/// Where the client resumes; `None` if the header is absent or empty.
pub(super) fn place(headers: &HeaderMap) -> Result<Option<ResumePoint>, ApiError> {
    let Some(value) = headers.get(NAME) else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let refused = || ApiError::bad_request("header \"last-event-id\": neither a UUID nor a position");
    ResumePoint::parse(text).map(Some).ok_or_else(refused)
}
