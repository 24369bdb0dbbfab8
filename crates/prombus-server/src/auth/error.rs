//! Why auth cannot work as configured, and why a token is refused.

use prombus_protocol::ErrorCode;
use std::path::PathBuf;
use thiserror::Error;

/// Auth that cannot work as it is configured.
#[derive(Debug, Error)]
pub enum AuthSetupError {
    /// A key file that cannot be read.
    #[error("cannot read the JWT key file {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A key file that holds no key that can be used.
    #[error("JWT key file {}: {fault}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// A secret that can be guessed.
    #[error(
        "the JWT secret has {bytes} bytes: HS256 needs at least 32, or tokens can be forged by guessing it"
    )]
    WeakSecret {
        /// Its length.
        bytes: usize,
    },
    /// JWT without a key.
    #[error("JWT is configured without a key: a secret, a PEM file or a JWKS file is needed")]
    NoKeys,
    /// A token that rules and logs could not name.
    #[error("token {position} has no name")]
    NamelessToken {
        /// Which of the tokens, counted from 1.
        position: usize,
    },
    /// Rules that would apply to no one.
    #[error(
        "there are rules but no token and no JWT: everybody would get in unnamed and the rules would mean nothing"
    )]
    RulesWithoutTokens,
}

/// Why a token is refused. The text goes to the sender of the token, so it tells no more than they may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthRefused {
    /// A token is needed and there is none.
    #[error("a token is needed")]
    Missing,
    /// Not a valid token.
    #[error("the token is not valid")]
    Bad,
    /// A token that was valid.
    #[error("the token has expired")]
    Expired,
    /// A token that will be valid.
    #[error("the token is not valid yet")]
    NotYetValid,
}

impl AuthRefused {
    /// The code that the wire has for it.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Missing => ErrorCode::Unauthorized,
            Self::Bad | Self::Expired | Self::NotYetValid => ErrorCode::BadToken,
        }
    }
}
