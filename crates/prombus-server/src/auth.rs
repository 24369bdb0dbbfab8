//! Who may do what: tokens are turned into a [`Principal`], and a principal says yes or no.
//!
//! Everything that guards the gateway asks here, so WebSocket and HTTP cannot differ. Nothing configured means that
//! everybody may do everything; then `guard.rs` sees to it that only this machine gets in. There is no I/O after the start,
//! and no clock: callers say what time it is.

mod guard;
mod jwt;
mod pattern;
mod principal;
mod refused_origins;
mod rule;
mod scope;
mod stream_ticket;
#[cfg(test)]
pub(crate) mod temporary_file;
#[cfg(test)]
mod tests;
mod ticket;
mod token;

pub(crate) use guard::{Guard, GuardRefused};
pub use jwt::{JwtKey, JwtOptions};
pub use principal::Principal;
pub use rule::{Action, Effect, Rule};
pub use scope::{Scope, ScopeError};
pub(crate) use stream_ticket::{StreamTickets, Subscription, TicketRefused, stream_ticket_life_ms};
pub(crate) use ticket::Tickets;
pub use token::{TokenHash, TokenHashError, TokenOptions};

use prombus_protocol::ErrorCode;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// A token of more bytes is refused unread.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Who gets in, and what they may do.
#[derive(Clone, Debug, Default)]
pub struct AuthOptions {
    /// Tokens that are known beforehand.
    pub tokens: Vec<TokenOptions>,
    /// How tokens of an identity provider are checked.
    pub jwt: Option<JwtOptions>,
    /// Rules on topics and groups, on top of scopes. The first that matches counts; where there are rules and none matches,
    /// the answer is no.
    pub rules: Vec<Rule>,
}

impl AuthOptions {
    /// Whether a token is needed to get in.
    pub fn is_configured(&self) -> bool {
        !self.tokens.is_empty() || self.jwt.is_some()
    }
}

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
    /// Rules that nobody would be held to.
    #[error(
        "there are rules but no token and no JWT: everybody would get in unnamed and the rules would mean nothing"
    )]
    RulesWithoutTokens,
}

/// Why a token does not let in. The text is for the one who sent the token, so it says no more than they may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthRefused {
    /// A token is needed and there is none.
    #[error("a token is needed")]
    Missing,
    /// Not a token that lets in.
    #[error("the token is not valid")]
    Bad,
    /// A token that did let in.
    #[error("the token has expired")]
    Expired,
    /// A token that will let in.
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

/// Turns tokens into principals. Made once, when the gateway starts; key files are read then.
#[derive(Debug)]
pub struct Authenticator {
    tokens: token::StaticTokens,
    jwt: Option<jwt::JwtVerifier>,
    rules: Arc<[Rule]>,
    is_configured: bool,
}

impl Authenticator {
    /// Reads the key files and checks the rest.
    ///
    /// # Errors
    /// Names the file or setting and what is wrong with it.
    pub fn new(options: &AuthOptions) -> Result<Self, AuthSetupError> {
        if !options.is_configured() && !options.rules.is_empty() {
            return Err(AuthSetupError::RulesWithoutTokens);
        }
        let rules: Arc<[Rule]> = options.rules.clone().into();
        Ok(Self {
            tokens: token::StaticTokens::new(&options.tokens, &rules)?,
            jwt: options.jwt.as_ref().map(jwt::JwtVerifier::new).transpose()?,
            rules,
            is_configured: options.is_configured(),
        })
    }

    /// Whether a token is needed to get in.
    pub fn is_configured(&self) -> bool {
        self.is_configured
    }

    /// Who has this token. Nothing configured: any token, or none, is [`Principal::anyone`].
    ///
    /// Tokens that are known beforehand are tried first, then JWT. A JWT needs `exp`: one that never ends could not be
    /// taken back.
    ///
    /// # Errors
    /// The token does not let in.
    pub fn authenticate(&self, token: Option<&str>, now_ms: i64) -> Result<Arc<Principal>, AuthRefused> {
        if !self.is_configured {
            return Ok(Principal::anyone());
        }
        let token = token.ok_or(AuthRefused::Missing)?;
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(AuthRefused::Bad);
        }
        if let Some(principal) = self.tokens.find(token) {
            return Ok(principal);
        }
        match &self.jwt {
            Some(jwt) if token.bytes().filter(|byte| *byte == b'.').count() == 2 => {
                let verified = jwt.verify(token, now_ms)?;
                Ok(Arc::new(Principal::new(
                    verified.name,
                    verified.scopes,
                    &self.rules,
                    Some(verified.expires_ms),
                    verified.print,
                )))
            }
            _ => Err(AuthRefused::Bad),
        }
    }

    /// Who a ticket was made for, as they are now: with the token's scopes of today, and the rules of today. `None` when the
    /// token is not configured any more, or a JWT has ended or would not be believed any more.
    fn owner(&self, owner: &stream_ticket::Owner, now_ms: i64) -> Option<Principal> {
        if owner.expires_ms.is_none() {
            let principal = self.tokens.by_print(owner.print)?;
            return (principal.name() == owner.name).then(|| Principal::clone(principal));
        }
        self.jwt.as_ref().filter(|jwt| jwt.knows(owner.print))?;
        let scopes = owner.scopes.iter().filter_map(|scope| scope.parse().ok()).collect();
        let principal =
            Principal::new(owner.name.clone(), scopes, &self.rules, owner.expires_ms, owner.print);
        (!principal.is_expired(now_ms)).then_some(principal)
    }
}
