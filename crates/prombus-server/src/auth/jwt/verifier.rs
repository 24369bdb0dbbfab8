//! Verifies JWTs with the keys that were loaded at startup.

#[cfg(test)]
mod tests;

use super::claims::{Claims, Verified, refused};
use super::key::{self, Key};
use super::options::JwtOptions;
use crate::auth::error::{AuthRefused, AuthSetupError};
use crate::auth::fingerprint::Fingerprint;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Verifies tokens.
#[derive(Debug)]
pub(in crate::auth) struct JwtVerifier {
    keys: Vec<Key>,
    /// The required value of `iss`; with `None`, `iss` is not checked.
    issuer: Option<String>,
    /// The value that `aud` must be or contain; with `None`, `aud` is not checked.
    audience: Option<String>,
    leeway_ms: i64,
}

impl JwtVerifier {
    pub(in crate::auth) fn new(options: &JwtOptions) -> Result<Self, AuthSetupError> {
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

    /// The content of the token, if it is signed by one of the keys, for this issuer and audience, and valid now.
    pub(in crate::auth) fn verify(&self, token: &str, now_ms: i64) -> Result<Verified, AuthRefused> {
        let (claims, print) =
            self.signed_claims(token).ok_or_else(|| refused("not signed by a configured key"))?;
        // The time is checked last: only the sender of an otherwise valid token learns that it has expired.
        claims.check_issuer(self.issuer.as_deref())?;
        claims.check_audience(self.audience.as_deref())?;
        claims.verified(now_ms, self.leeway_ms, print)
    }

    /// Whether this is the fingerprint of a configured key, with the configured issuer and audience. If so, a JWT that had this
    /// fingerprint is still accepted.
    pub(in crate::auth) fn knows(&self, print: Fingerprint) -> bool {
        self.keys.iter().any(|key| self.print_of(key) == print)
    }

    fn print_of(&self, key: &Key) -> Fingerprint {
        let [issuer, audience] = [&self.issuer, &self.audience].map(|it| it.as_deref().unwrap_or_default());
        Fingerprint::of(&[b"jwt", &key.print, issuer.as_bytes(), audience.as_bytes()])
    }

    fn signed_claims(&self, token: &str) -> Option<(Claims, Fingerprint)> {
        let (message, signature) = token.rsplit_once('.')?;
        let (_, payload) = message.split_once('.')?;
        let header = jsonwebtoken::decode_header(token).ok()?;
        // A token with critical extensions must be refused unless all of them are supported, and none is.
        if header.crit.is_some() {
            return None;
        }
        let has_signed = |key: &&Key| key.has_signed(message.as_bytes(), signature);
        let mut fitting = self.keys.iter().filter(|key| key.fits(header.alg, header.kid.as_deref()));
        let key = fitting.find(has_signed)?;
        Some((Claims::new(&URL_SAFE_NO_PAD.decode(payload).ok()?)?, self.print_of(key)))
    }
}
