//! What can go wrong, in words that say what to do about it.

use prombus_protocol::ErrorCode;
use thiserror::Error;

/// Why a call did not work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A text that is no address of a server.
    #[error("{text:?} is no address of a server: {why}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody answers there.
    #[error(
        "cannot connect to {address}: {why}; is `prombus serve` running there? (--url names another server)"
    )]
    Connect {
        /// Where.
        address: String,
        /// Why not.
        why: String,
    },
    /// The server wants a token, or another one.
    #[error("{address} does not let in: {why}; give a token with --token or PROMBUS_TOKEN")]
    Unauthorized {
        /// Where.
        address: String,
        /// What it says.
        why: String,
    },
    /// The server refused.
    #[error("{message} ({code})")]
    Refused {
        /// The status, if it was asked over HTTP.
        status: Option<u16>,
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        message: String,
        /// When to try again.
        retry_after_ms: Option<u64>,
    },
    /// The connection broke.
    #[error("the connection to {address} broke: {why}")]
    Lost {
        /// To where.
        address: String,
        /// How.
        why: String,
    },
    /// The server answered what nobody understands: it may be no prombus server.
    #[error("{address} answered what no prombus server answers: {why}")]
    Answer {
        /// Where.
        address: String,
        /// What.
        why: String,
    },
}

impl ClientError {
    /// Whether it may work in a while without anybody doing anything here.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } => true,
            Self::Refused { code, .. } => matches!(code, ErrorCode::RateLimited | ErrorCode::Unavailable),
            Self::Address { .. } | Self::Unauthorized { .. } | Self::Answer { .. } => false,
        }
    }

    /// The code, if the server refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Why a publish did not work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PublishError {
    /// It was refused: nothing was kept, but after `unavailable` nobody knows.
    #[error("{message} ({code})")]
    Refused {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        message: String,
        /// When to try again.
        retry_after_ms: Option<u64>,
    },
    /// The connection broke before the answer: whether it was kept is unknown. Sending it again with the same id is safe.
    #[error("{0}")]
    Lost(String),
}

impl PublishError {
    /// The code, if the server refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Lost(_) => None,
        }
    }
}
