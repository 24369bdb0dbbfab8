//! Good answers.

use super::ApiError;
use super::fields::{IgnoredNames, in_order};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use std::collections::BTreeSet;

/// What a handler answers.
pub(super) type Answered = Result<Response, ApiError>;

/// The answer to a deletion.
#[derive(Serialize)]
pub(super) struct Deleted {
    pub(super) deleted: bool,
}

/// A value as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> Answered {
    let json = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal(format!("the answer cannot be written: {error}")))?;
    Ok(typed("application/json", Body::from(json)))
}

/// What an operation did, with the names in the request that meant nothing to it.
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

/// A body with its type.
pub(super) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
