//! Resolves tokens to principals. Key files are read only by [`Authenticator::new`]. There is no clock: callers pass the time.

#[cfg(test)]
mod tests;

use super::error::{AuthRefused, AuthSetupError};
use super::jwt::{JwtFault, JwtVerifier};
use super::options::AuthOptions;
use super::principal::Principal;
use super::rule::Rule;
use super::ticket_owner::TicketOwner;
use super::token::StaticTokens;
use std::sync::Arc;

/// A longer token is refused without further checks.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Resolves tokens to principals. Created at startup and at each reload. Only then are the key files read.
#[derive(Debug)]
pub struct Authenticator {
    pub(super) tokens: StaticTokens,
    pub(super) jwt: Option<JwtVerifier>,
    pub(super) rules: Arc<[Rule]>,
    is_configured: bool,
}

impl Authenticator {
    /// Reads the key files and checks the options.
    ///
    /// # Errors
    /// The file or setting, and its problem.
    pub fn new(options: &AuthOptions) -> Result<Self, AuthSetupError> {
        if !options.is_configured() && !options.rules.is_empty() {
            return Err(AuthSetupError::RulesWithoutTokens);
        }
        let rules: Arc<[Rule]> = options.rules.clone().into();
        Ok(Self {
            tokens: StaticTokens::new(&options.tokens, &rules)?,
            jwt: options.jwt.as_ref().map(JwtVerifier::new).transpose()?,
            rules,
            is_configured: options.is_configured(),
        })
    }

    /// Whether clients need a token.
    pub fn is_configured(&self) -> bool {
        self.is_configured
    }

    /// The owner of this token. Without auth, every client is [`Principal::anyone`], with or without a token.
    ///
    /// Configured tokens are tried first, then JWT. A JWT must have `exp`, because one that never expires could not be revoked.
    ///
    /// # Errors
    /// The token is refused.
    pub fn authenticate(&self, token: Option<&str>, now_ms: i64) -> Result<Arc<Principal>, AuthRefused> {
        if !self.is_configured {
            return Ok(Principal::anyone());
        }
        let token = token.ok_or(AuthRefused::Missing)?;
        if token.is_empty() {
            return Err(AuthRefused::Bad);
        }
        let is_too_long = token.len() > MAX_TOKEN_BYTES;
        if !is_too_long && let Some(principal) = self.tokens.find(token) {
            return Ok(principal);
        }
        let Some(jwt) = &self.jwt else { return Err(AuthRefused::Bad) };
        if is_too_long {
            return Err(jwt.refuse(token, JwtFault::TooLong, now_ms));
        }
        if token.bytes().filter(|byte| *byte == b'.').count() != 2 {
            return Err(jwt.refuse(token, JwtFault::Parts, now_ms));
        }
        let verified = jwt.verify(token, now_ms)?;
        let expires_ms = Some(verified.expires_ms);
        let principal =
            Principal::new(verified.name, verified.scopes, &self.rules, expires_ms, verified.print);
        Ok(Arc::new(principal.of_jwt(verified.key)))
    }

    /// The owner of a ticket, with the scopes and rules of the current configuration. `None` if the token is no longer
    /// configured, or if the JWT has expired or would no longer be accepted.
    pub(super) fn owner(&self, owner: &TicketOwner, now_ms: i64) -> Option<Principal> {
        if owner.expires_ms.is_none() {
            let principal = self.tokens.by_fingerprint(owner.print)?;
            return (principal.name() == owner.name).then(|| Principal::clone(principal));
        }
        let key = self.jwt.as_ref().and_then(|jwt| jwt.key_of(owner.print))?;
        let scopes = owner.scopes.iter().filter_map(|scope| scope.parse().ok()).collect();
        let principal =
            Principal::new(owner.name.clone(), scopes, &self.rules, owner.expires_ms, owner.print)
                .of_jwt(key);
        (!principal.is_expired(now_ms)).then_some(principal)
    }
}
