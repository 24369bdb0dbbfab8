//! The options of authentication and authorization.

use super::jwt::JwtOptions;
use super::rule::Rule;
use super::token::TokenOptions;

/// Tokens, JWT verification, and rules.
#[derive(Clone, Debug, Default)]
pub struct AuthOptions {
    /// Static tokens.
    pub tokens: Vec<TokenOptions>,
    /// How JWTs of an identity provider are verified; with `None`, all JWTs are refused.
    pub jwt: Option<JwtOptions>,
    /// Rules on topics and groups, in addition to scopes. The first rule that matches applies. If there are rules and none
    /// matches, access is denied.
    pub rules: Vec<Rule>,
}

impl AuthOptions {
    /// Whether clients need a token.
    pub fn is_configured(&self) -> bool {
        !self.tokens.is_empty() || self.jwt.is_some()
    }
}
