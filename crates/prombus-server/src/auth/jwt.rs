//! JSON Web Tokens: what an identity provider has signed.
//!
//! A key has one algorithm, and a token is only checked against keys of the algorithm that its header names. So a header
//! cannot talk a public key into being a secret, and `none` fits no key. Keys are loaded in `key.rs`, what a token says is read
//! in `claims.rs`. Nothing here fetches keys from anywhere: what a header says of keys (`jwk`, `jku`, `x5u`) is not looked at.

mod claims;
mod key;
#[cfg(test)]
mod tests;

use super::principal::Print;
use super::{AuthRefused, AuthSetupError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claims::{Claims, Verified};
use key::Key;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How JWTs are checked.
///
/// `exp` is required, `nbf` is kept. Scopes are read from the claim `scope` (words in a string) and from `scopes` (a list);
/// what is no scope of ours is ignored. `sub` is the name that rules and logs use; without it, `jwt`.
#[derive(Clone, Debug)]
pub struct JwtOptions {
    /// The keys. A token must be signed by one of them, with the key's own algorithm.
    pub keys: Vec<JwtKey>,
    /// What `iss` must be.
    pub issuer: Option<String>,
    /// What `aud` must be or hold.
    pub audience: Option<String>,
    /// By how much clocks may differ. Default: 30 s.
    pub leeway: Duration,
}

impl Default for JwtOptions {
    fn default() -> Self {
        Self { keys: Vec::new(), issuer: None, audience: None, leeway: Duration::from_secs(30) }
    }
}

/// Where a key comes from.
#[derive(Clone)]
pub enum JwtKey {
    /// A shared secret of at least 32 bytes, for HS256.
    Secret(String),
    /// A file with a public key in PEM. The key says which algorithm: RSA is RS256, P-256 is ES256, Ed25519 is EdDSA.
    PemFile(PathBuf),
    /// A file with a JSON Web Key Set.
    JwksFile(PathBuf),
}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(_) => f.write_str("Secret(..)"),
            Self::PemFile(file) => f.debug_tuple("PemFile").field(file).finish(),
            Self::JwksFile(file) => f.debug_tuple("JwksFile").field(file).finish(),
        }
    }
}

/// Checks tokens against keys that were loaded at the start.
#[derive(Debug)]
pub(super) struct JwtVerifier {
    keys: Vec<Key>,
    issuer: Option<String>,
    audience: Option<String>,
    leeway_ms: i64,
}

impl JwtVerifier {
    pub(super) fn new(options: &JwtOptions) -> Result<Self, AuthSetupError> {
        let mut keys = Vec::new();
        for source in &options.keys {
            keys.extend(key::load(source)?);
        }
        if keys.is_empty() {
            return Err(AuthSetupError::NoKeys);
        }
        Ok(Self {
            keys,
            issuer: options.issuer.clone(),
            audience: options.audience.clone(),
            leeway_ms: i64::try_from(options.leeway.as_millis()).unwrap_or(i64::MAX),
        })
    }

    /// What the token says, if one of the keys has signed it and it is for us and for now.
    pub(super) fn verify(&self, token: &str, now_ms: i64) -> Result<Verified, AuthRefused> {
        let (claims, print) =
            self.signed_claims(token).ok_or_else(|| refused("not signed by a key of ours"))?;
        // When it ends is told last, so that only the owner of a token that did let in hears of it.
        claims.check_issuer(self.issuer.as_deref())?;
        claims.check_audience(self.audience.as_deref())?;
        claims.verified(now_ms, self.leeway_ms, print)
    }

    /// Whether a JWT that was checked with this key, for this issuer and audience, would still be.
    pub(super) fn knows(&self, print: Print) -> bool {
        self.keys.iter().any(|key| self.print_of(key) == print)
    }

    fn print_of(&self, key: &Key) -> Print {
        let [issuer, audience] = [&self.issuer, &self.audience].map(|it| it.as_deref().unwrap_or_default());
        Print::of(&[b"jwt", &key.print, issuer.as_bytes(), audience.as_bytes()])
    }

    fn signed_claims(&self, token: &str) -> Option<(Claims, Print)> {
        let (message, signature) = token.rsplit_once('.')?;
        let (_, payload) = message.split_once('.')?;
        let header = jsonwebtoken::decode_header(token).ok()?;
        // What is critical must be understood, and no such extension is.
        if header.crit.is_some() {
            return None;
        }
        let has_signed = |key: &&Key| key.has_signed(message.as_bytes(), signature);
        let mut fitting = self.keys.iter().filter(|key| key.fits(header.alg, header.kid.as_deref()));
        let key = fitting.find(has_signed)?;
        Some((Claims::new(&URL_SAFE_NO_PAD.decode(payload).ok()?)?, self.print_of(key)))
    }
}

/// The sender hears only that the token is bad; the reason is for the operator.
fn refused(reason: &'static str) -> AuthRefused {
    tracing::debug!(reason, "JWT refused");
    AuthRefused::Bad
}
