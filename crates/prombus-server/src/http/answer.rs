//! Good answers.

use super::{Answered, ApiError};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;

/// A value as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> Answered {
    let json = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal(format!("the answer cannot be written: {error}")))?;
    Ok(typed("application/json", Body::from(json)))
}

/// A body with its type.
pub(super) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
