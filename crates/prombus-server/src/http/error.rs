//! Errors of HTTP requests: `{"error": …, "code": …}`. The only place that maps error codes to HTTP statuses.

use crate::auth::{AuthRefused, GuardRefused};
use crate::live::Withdrawn;
use crate::rate_limit::RateLimited;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prombus::{BackupError, GroupError, PublishError, ReadError, StoreError, TopicAdminError, Unavailable};
use prombus_protocol::{ErrorCode, FrameError, GroupNameError, OptionError, TopicError};
use serde::Serialize;

/// After how many milliseconds a client should retry while the server cannot write.
const UNAVAILABLE_RETRY_MS: u64 = 2_000;

/// Supported encodings of request bodies: the `Accept-Encoding` header of a 415 response.
pub(super) const SUPPORTED_ENCODINGS: &str = "gzip, zstd";

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    /// After how many milliseconds a retry may succeed; `None` if this is not known.
    pub(crate) retry_after_ms: Option<u64>,
}

/// The status of a code.
pub(crate) fn status_of(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::BadJson | ErrorCode::BadRequest | ErrorCode::BadTopic => StatusCode::BAD_REQUEST,
        ErrorCode::Unauthorized | ErrorCode::BadToken => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::NotSubscribed | ErrorCode::UnknownId | ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::AlreadySubscribed | ErrorCode::GroupConflict | ErrorCode::LimitReached => {
            StatusCode::CONFLICT
        }
        ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::PublishFailed | ErrorCode::AckFailed | ErrorCode::Internal => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl ToString) -> Self {
        let retry_after_ms = (code == ErrorCode::Unavailable).then_some(UNAVAILABLE_RETRY_MS);
        Self { status: status_of(code), code, message: message.to_string(), retry_after_ms }
    }

    pub(crate) fn bad_request(message: impl ToString) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    pub(crate) fn not_found(message: impl ToString) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    pub(crate) fn forbidden(message: impl ToString) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }

    pub(crate) fn internal(message: impl ToString) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// Replaces the status that belongs to the code.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Prefixes the message with the place of the error, e.g. the line.
    pub(crate) fn at(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl ApiError {
    /// The error as the last line of a response that has already begun.
    pub(super) fn last_line(&self) -> String {
        serde_json::json!({ "error": self.message, "code": self.code }).to_string()
    }
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    code: ErrorCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, retry_after_ms } = self;
        let body = ErrorBody { error: &message, code, retry_after_ms };
        let json = serde_json::to_vec(&body).expect("strings and numbers can be written as JSON");
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if status == StatusCode::UNAUTHORIZED {
            let challenge = match code {
                ErrorCode::BadToken => "Bearer error=\"invalid_token\"",
                _ => "Bearer",
            };
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(SUPPORTED_ENCODINGS));
        }
        if let Some(retry_after_ms) = retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_ms.div_ceil(1000)));
        }
        response
    }
}

impl From<RateLimited> for ApiError {
    fn from(error: RateLimited) -> Self {
        let retry_after_ms = Some(error.retry_after_ms);
        Self { retry_after_ms, ..Self::new(ErrorCode::RateLimited, error) }
    }
}

impl From<Withdrawn> for ApiError {
    fn from(withdrawn: Withdrawn) -> Self {
        Self::new(ErrorCode::BadToken, withdrawn)
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownTopic(_) => Self::not_found(error),
            ReadError::UnknownId(_) | ReadError::UnknownPosition => Self::new(ErrorCode::UnknownId, error),
            ReadError::TooManyKeys { .. } => Self::new(ErrorCode::LimitReached, error),
            ReadError::Unavailable(_) | ReadError::Io(_) | ReadError::Unreadable { .. } => {
                Self::new(ErrorCode::Unavailable, error)
            }
            error => Self::internal(error),
        }
    }
}

impl From<GroupError> for ApiError {
    fn from(error: GroupError) -> Self {
        let code = match error.code() {
            // An HTTP request has no subscription: here the code means that the group does not exist.
            ErrorCode::NotSubscribed => ErrorCode::NotFound,
            code => code,
        };
        Self::new(code, error)
    }
}

impl From<TopicAdminError> for ApiError {
    fn from(error: TopicAdminError) -> Self {
        match error {
            TopicAdminError::UnknownTopic(_) => Self::not_found(error),
            TopicAdminError::Setting(_) => Self::bad_request(error),
            TopicAdminError::TooManyTopics(_) => Self::new(ErrorCode::LimitReached, error),
            TopicAdminError::StorageFull => Self::new(ErrorCode::StorageFull, error),
            TopicAdminError::Unavailable(_) => Self::new(ErrorCode::Unavailable, error),
            error => Self::internal(error),
        }
    }
}

impl From<BackupError> for ApiError {
    fn from(error: BackupError) -> Self {
        let code = match error {
            BackupError::NotDurable | BackupError::Elsewhere(_) | BackupError::Folder(_) => {
                ErrorCode::BadRequest
            }
            BackupError::Full(_) => ErrorCode::StorageFull,
            _ => ErrorCode::Unavailable,
        };
        Self::new(code, error)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::new(ErrorCode::StorageFull, error),
            StoreError::Unavailable(_) => Self::new(ErrorCode::Unavailable, error),
            error => Self::internal(error),
        }
    }
}

impl From<GuardRefused> for ApiError {
    fn from(refused: GuardRefused) -> Self {
        match refused {
            GuardRefused::NoHost | GuardRefused::BadHost => Self::bad_request(refused),
            _ => Self::forbidden(refused),
        }
    }
}

/// Conversions of errors whose code is given by a function.
macro_rules! from_coded {
    ($($error:ty => $code:expr),* $(,)?) => {$(
        impl From<$error> for ApiError {
            fn from(error: $error) -> Self {
                let code: fn(&$error) -> ErrorCode = $code;
                Self::new(code(&error), error)
            }
        }
    )*};
}

from_coded! {
    PublishError => PublishError::code,
    AuthRefused => |error| error.code(),
    OptionError => |_| ErrorCode::BadRequest,
    TopicError => |_| ErrorCode::BadTopic,
    GroupNameError => |_| ErrorCode::BadRequest,
    Unavailable => Unavailable::code,
}

impl From<FrameError> for ApiError {
    fn from(error: FrameError) -> Self {
        Self::new(error.code, error.msg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_status() {
        for code in ErrorCode::ALL {
            let status = status_of(code);
            assert!(status.is_client_error() || status.is_server_error(), "{code}");
        }
    }

    #[test]
    fn retry_after_is_in_seconds_and_rounded_up() {
        let limited = RateLimited { what: "topic", retry_after_ms: 1_001 };
        let response = ApiError::from(limited).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }
}
