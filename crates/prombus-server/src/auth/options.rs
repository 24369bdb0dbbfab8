//! Who gets in, and what they may do, as it is configured.

use super::jwt::JwtOptions;
use super::rule::Rule;
use super::token::TokenOptions;

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
