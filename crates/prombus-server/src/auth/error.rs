//! Errors of the auth configuration, and reasons why a token is refused.

use prombus_protocol::ErrorCode;
use std::path::PathBuf;
use thiserror::Error;

/// An invalid auth configuration.
#[derive(Debug, Error)]
pub enum AuthSetupError {
    /// A key file cannot be read.
    #[error("cannot read the JWT key file {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A key file contains no usable key.
    #[error("JWT key file {}: {fault}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The problem.
        fault: String,
    },
    /// A secret is short enough to be guessed.
    #[error(
        "the JWT secret has {bytes} bytes: HS256 needs at least 32, otherwise it can be guessed and tokens forged"
    )]
    WeakSecret {
        /// The length of the secret.
        bytes: usize,
    },
    /// JWT is configured without a key.
    #[error("JWT is configured without a key: set a secret, a PEM file or a JWKS file")]
    NoKeys,
    /// A token has no name, which rules and logs need.
    #[error("token {position} has no name")]
    NamelessToken {
        /// Which of the tokens, counted from 1.
        position: usize,
    },
    /// Rules are configured that would have no effect.
    #[error(
        "rules are configured without tokens and JWT: every client would have access without a name, and no rule would apply"
    )]
    RulesWithoutTokens,
}

/// Why a token is refused. The text is sent to the client, so it reveals no details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthRefused {
    /// A token is needed, but there is none.
    #[error("a token is needed")]
    Missing,
    /// The token is not valid.
    #[error("the token is not valid")]
    Bad,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid before a later time.
    #[error("the token is not valid yet")]
    NotYetValid,
}

impl AuthRefused {
    /// The error code on the wire.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Missing => ErrorCode::Unauthorized,
            Self::Bad | Self::Expired | Self::NotYetValid => ErrorCode::BadToken,
        }
    }
}
