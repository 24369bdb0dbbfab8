//! Errors of the client.

use prombus_protocol::{ErrorCode, OptionError, TopicError};
use std::path::PathBuf;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A text that is not the address of a server.
    #[error("{text:?} is not the address of a server: {why}")]
    Address {
        /// The text.
        text: String,
        /// The problem with it.
        why: String,
    },
    /// A file of trusted certificates cannot be used.
    #[error("cannot use the CA certificate {}: {why}", file.display())]
    CaCert {
        /// The file.
        file: PathBuf,
        /// The problem with it.
        why: String,
    },
    /// The server cannot be reached.
    #[error("cannot connect to {address}: {why}")]
    Connect {
        /// The server's address.
        address: String,
        /// The cause.
        why: String,
    },
    /// The certificate of the server is not trusted, has expired, or is for another host. Nothing was sent to the server.
    #[error("the certificate of {address} is refused: {why}")]
    Certificate {
        /// The server's address.
        address: String,
        /// The problem with the certificate.
        why: String,
    },
    /// TLS cannot be established for another reason, for example because the server does not use it.
    #[error("no TLS connection to {address}: {why}")]
    Tls {
        /// The server's address.
        address: String,
        /// The cause.
        why: String,
    },
    /// The server requires a token, or refused the one that was sent.
    #[error("{address} refused access: {why}")]
    Unauthorized {
        /// The server's address.
        address: String,
        /// The server's message.
        why: String,
    },
    /// The server refused the request.
    #[error("{message} ({code})")]
    Refused {
        /// The HTTP status, if it was an HTTP request.
        status: Option<u16>,
        /// The error code, for programs.
        code: ErrorCode,
        /// The message, for people.
        message: String,
        /// The time to wait before the next try; `None` if the server named none.
        retry_after_ms: Option<u64>,
    },
    /// The connection broke.
    #[error("the connection to {address} broke: {why}")]
    Lost {
        /// The server's address.
        address: String,
        /// The cause.
        why: String,
    },
    /// The response is not valid: perhaps another program, not a prombus server, uses this address.
    #[error("{address} did not respond like a prombus server: {why}")]
    Answer {
        /// The server's address.
        address: String,
        /// The problem with the response.
        why: String,
    },
}

impl ClientError {
    /// Whether the same call may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } => true,
            Self::Refused { code, .. } => {
                matches!(code, ErrorCode::RateLimited | ErrorCode::Unavailable | ErrorCode::StorageFull)
            }
            Self::Address { .. }
            | Self::CaCert { .. }
            | Self::Certificate { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::Answer { .. } => false,
        }
    }

    /// The code, if the server refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether this error ends an established subscription; other errors are retried.
    pub(crate) fn ends_subscription(&self) -> bool {
        use ErrorCode::{
            AckFailed, AlreadySubscribed, BadJson, BadRequest, BadToken, BadTopic, Forbidden, GroupConflict,
            Internal, LimitReached, MethodNotAllowed, NotFound, NotSubscribed, PublishFailed, RateLimited,
            StorageFull, TooLarge, Unauthorized, Unavailable, UnknownId,
        };
        match self {
            Self::Address { .. }
            | Self::CaCert { .. }
            | Self::Certificate { .. }
            | Self::Unauthorized { .. } => true,
            // A proxy responds with its own errors while the server restarts.
            Self::Connect { .. } | Self::Tls { .. } | Self::Lost { .. } | Self::Answer { .. } => false,
            Self::Refused { code, .. } => match code {
                BadJson | BadRequest | BadTopic | Unauthorized | BadToken | Forbidden | AlreadySubscribed
                | NotSubscribed | UnknownId | GroupConflict | NotFound | MethodNotAllowed | LimitReached
                | TooLarge => true,
                RateLimited | StorageFull | Unavailable | PublishFailed | AckFailed | Internal => false,
            },
        }
    }
}

/// Why a record cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The topic name is not valid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Payload(#[from] serde_json::Error),
    /// An option is invalid.
    #[error(transparent)]
    Option(#[from] OptionError),
}

impl From<RecordError> for PublishError {
    fn from(error: RecordError) -> Self {
        let code = match &error {
            RecordError::Topic(_) => ErrorCode::BadTopic,
            RecordError::Payload(_) => ErrorCode::BadJson,
            RecordError::Option(_) => ErrorCode::BadRequest,
        };
        Self::Refused { code, message: error.to_string(), retry_after_ms: None }
    }
}

/// Why a publish failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PublishError {
    /// The server refused the event. It was not stored, unless the code is `unavailable`: then it may have been stored.
    #[error("{message} ({code})")]
    Refused {
        /// The error code, for programs.
        code: ErrorCode,
        /// The message, for people.
        message: String,
        /// The time to wait before the next try; `None` if the server named none.
        retry_after_ms: Option<u64>,
    },
    /// The connection broke, or the client's patience ended, before the response: the event may have been stored. Publishing it again with
    /// the same id is safe.
    #[error("{0}")]
    Lost(String),
}

impl PublishError {
    /// Whether the reason is in the event, so that the same event would be refused again.
    pub fn is_permanent(&self) -> bool {
        use ErrorCode::{BadJson, BadRequest, BadTopic, TooLarge};
        self.code().is_some_and(|code| matches!(code, BadJson | BadRequest | BadTopic | TooLarge))
    }

    /// Converts the error into the error of a request that is not a publish.
    pub(crate) fn into_client_error(self, address: &str) -> ClientError {
        match self {
            Self::Lost(why) => ClientError::Lost { address: address.to_owned(), why },
            Self::Refused { code, message, retry_after_ms } => {
                ClientError::Refused { status: None, code, message, retry_after_ms }
            }
        }
    }

    /// Whether the server does not accept writes now but may accept them later.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::Unavailable | ErrorCode::StorageFull))
    }

    /// The code, if the server refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Lost(_) => None,
        }
    }
}
