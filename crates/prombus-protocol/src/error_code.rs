//! The codes of ERR frames and of HTTP errors.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Why a frame or request was refused. The text of a code never changes, so clients can compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The frame or payload is not JSON.
    BadJson,
    /// The JSON is not a known frame, or an option is out of range.
    BadRequest,
    /// The topic's name breaks the rules.
    BadTopic,
    /// AUTH is required first.
    Unauthorized,
    /// The token of an AUTH is not valid.
    BadToken,
    /// The token does not allow this.
    Forbidden,
    /// This connection already has this subscription.
    AlreadySubscribed,
    /// This connection does not have this subscription.
    NotSubscribed,
    /// No event, or no delivery in flight, has this id.
    UnknownId,
    /// The group exists with other settings, such as another filter.
    GroupConflict,
    /// HTTP: the route, topic, group or key does not exist.
    NotFound,
    /// HTTP: the route does not support this method.
    MethodNotAllowed,
    /// A limit is reached: on topics, groups, subscriptions of a connection, tickets issued in the last 30 s, or the memory for state.
    LimitReached,
    /// A rate limit is exceeded; `retry_after_ms` is the time to wait.
    RateLimited,
    /// The frame or payload is over the size limit.
    TooLarge,
    /// The disk is full or, with the memory engine, the memory for events.
    StorageFull,
    /// The store cannot confirm writes now; pending events may or may not be stored.
    Unavailable,
    /// The store refused a publish for another reason.
    PublishFailed,
    /// The store refused an ack or nack.
    AckFailed,
    /// An internal error of the server.
    Internal,
}

impl ErrorCode {
    /// All codes, in the order of the protocol's table.
    pub const ALL: [Self; 20] = [
        Self::BadJson,
        Self::BadRequest,
        Self::BadTopic,
        Self::Unauthorized,
        Self::BadToken,
        Self::Forbidden,
        Self::AlreadySubscribed,
        Self::NotSubscribed,
        Self::UnknownId,
        Self::GroupConflict,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::LimitReached,
        Self::RateLimited,
        Self::TooLarge,
        Self::StorageFull,
        Self::Unavailable,
        Self::PublishFailed,
        Self::AckFailed,
        Self::Internal,
    ];

    /// The code as it is sent on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadJson => "bad_json",
            Self::BadRequest => "bad_request",
            Self::BadTopic => "bad_topic",
            Self::Unauthorized => "unauthorized",
            Self::BadToken => "bad_token",
            Self::Forbidden => "forbidden",
            Self::AlreadySubscribed => "already_subscribed",
            Self::NotSubscribed => "not_subscribed",
            Self::UnknownId => "unknown_id",
            Self::GroupConflict => "group_conflict",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::LimitReached => "limit_reached",
            Self::RateLimited => "rate_limited",
            Self::TooLarge => "too_large",
            Self::StorageFull => "storage_full",
            Self::Unavailable => "unavailable",
            Self::PublishFailed => "publish_failed",
            Self::AckFailed => "ack_failed",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A code that this version of the protocol does not know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown error code {0:?}")]
pub struct UnknownErrorCode(pub String);

impl FromStr for ErrorCode {
    type Err = UnknownErrorCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| UnknownErrorCode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_serde_and_from_str_agree() {
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<ErrorCode>(&format!("\"{code}\"")).unwrap(), code);
        }
        assert!("BadJson".parse::<ErrorCode>().is_err());
    }
}
