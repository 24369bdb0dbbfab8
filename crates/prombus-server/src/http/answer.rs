//! Successful responses.

use super::ApiError;
use super::fields::{IgnoredNames, in_order};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use std::collections::BTreeSet;

/// The result of a handler.
pub(super) type Answered = Result<Response, ApiError>;

/// The response to a deletion.
#[derive(Serialize)]
pub(super) struct Deleted {
    pub(super) deleted: bool,
}

/// A value as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> Answered {
    let json = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal(format!("the response cannot be written as JSON: {error}")))?;
    Ok(typed("application/json", Body::from(json)))
}

/// The result of an operation as JSON, with the unknown names in the request.
pub(super) fn done<T: Serialize>(value: &T, ignored: &IgnoredNames) -> Answered {
    #[derive(Serialize)]
    struct Done<'a, T> {
        #[serde(flatten)]
        value: &'a T,
        ignored: BTreeSet<&'a str>,
    }
    if ignored.is_empty() {
        return json(value);
    }
    json(&Done { value, ignored: in_order(ignored) })
}

/// A response with a body of this content type.
pub(super) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
