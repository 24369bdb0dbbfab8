//! Verifies JWTs with the configured keys.

#[cfg(test)]
mod tests;

use super::claims::{Claims, Verified};
use super::fault::{JwtFault, RefusalLog};
use super::key::{self, Key, KeyPrint};
use super::options::JwtOptions;
use crate::auth::error::{AuthRefused, AuthSetupError};
use crate::auth::fingerprint::Fingerprint;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The start of every JWT: `{"` in base64url.
const JWT_START: &str = "eyJ";

/// Verifies tokens.
#[derive(Debug)]
pub(in crate::auth) struct JwtVerifier {
    keys: Vec<Key>,
    /// For each key, the fingerprint of the key and of all settings that decide whether a token is accepted.
    prints: Vec<Fingerprint>,
    /// The required value of `iss`; with `None`, `iss` is not checked.
    issuer: Option<String>,
    /// The value that `aud` must be or contain; with `None`, `aud` is not checked.
    audience: Option<String>,
    leeway_ms: i64,
    log: RefusalLog,
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
        let leeway_ms = i64::try_from(options.leeway.as_millis()).unwrap_or(i64::MAX);
        let (issuer, audience) = (options.issuer.as_deref(), options.audience.as_deref());
        let print = |key: &Key| {
            let [kid, issuer, audience] = [key.kid.as_deref(), issuer, audience].map(part_of);
            Fingerprint::of(&[b"jwt", &key.print, &kid, &issuer, &audience, &leeway_ms.to_be_bytes()])
        };
        Ok(Self {
            prints: keys.iter().map(print).collect(),
            keys,
            issuer: options.issuer.clone(),
            audience: options.audience.clone(),
            leeway_ms,
            log: RefusalLog::default(),
        })
    }

    /// The content of the token, if it is signed by one of the keys, for this issuer and audience, and valid now.
    pub(in crate::auth) fn verify(&self, token: &str, now_ms: i64) -> Result<Verified, AuthRefused> {
        match self.check(token, now_ms) {
            Ok(verified) => {
                if verified.scopes.is_empty() {
                    self.log.without_scopes(now_ms);
                }
                Ok(verified)
            }
            Err(fault) => {
                self.log.refused(fault, now_ms);
                Err(fault.into())
            }
        }
    }

    /// Logs a token that is refused before [`verify`](Self::verify), if it looks like a JWT. Returns the reason for the client.
    pub(in crate::auth) fn refuse(&self, token: &str, fault: JwtFault, now_ms: i64) -> AuthRefused {
        if token.starts_with(JWT_START) {
            self.log.refused(fault, now_ms);
        }
        fault.into()
    }

    /// The texts that were logged.
    #[cfg(test)]
    pub(in crate::auth) fn logged(&self) -> Vec<String> {
        self.log.logged()
    }

    fn check(&self, token: &str, now_ms: i64) -> Result<Verified, JwtFault> {
        let (claims, key, print) = self.signed_claims(token)?;
        // The time is checked last: only the sender of an otherwise valid token learns that it has expired.
        claims.check_issuer(self.issuer.as_deref())?;
        claims.check_audience(self.audience.as_deref())?;
        claims.verified(now_ms, self.leeway_ms, key, print)
    }

    /// The key of a fingerprint of [`Verified::print`]. `None` if the key is not configured, or is configured with another id,
    /// issuer, audience or leeway: a JWT that was accepted then may not be accepted now.
    pub(in crate::auth) fn key_of(&self, print: Fingerprint) -> Option<KeyPrint> {
        let at = self.prints.iter().position(|known| *known == print)?;
        Some(self.keys[at].print)
    }

    /// Whether a key is configured, whatever its settings are.
    pub(in crate::auth) fn has_key(&self, key: KeyPrint) -> bool {
        self.keys.iter().any(|known| known.print == key)
    }

    /// All keys.
    pub(in crate::auth) fn keys(&self) -> impl Iterator<Item = KeyPrint> {
        self.keys.iter().map(|key| key.print)
    }

    /// Each key, and the fingerprint of it and its settings.
    #[cfg(test)]
    pub(in crate::auth) fn prints(&self) -> impl Iterator<Item = (KeyPrint, Fingerprint)> {
        self.keys().zip(self.prints.iter().copied())
    }

    /// Whether the issuer, the audience, the leeway, or the id (`kid`) of a key that both have, is another one than before.
    pub(in crate::auth) fn has_new_settings(&self, before: &Self) -> bool {
        let kids = |of: &Self, print: KeyPrint| {
            let mut kids: Vec<_> =
                of.keys.iter().filter(|key| key.print == print).map(|key| key.kid.clone()).collect();
            kids.sort_unstable();
            kids
        };
        let has_other_kid = |key: &Key| {
            let old = kids(before, key.print);
            !old.is_empty() && old != kids(self, key.print)
        };
        (self.leeway_ms, &self.issuer, &self.audience) != (before.leeway_ms, &before.issuer, &before.audience)
            || self.keys.iter().any(has_other_kid)
    }

    fn signed_claims(&self, token: &str) -> Result<(Claims, KeyPrint, Fingerprint), JwtFault> {
        let (message, signature) = token.rsplit_once('.').ok_or(JwtFault::Header)?;
        let (_, payload) = message.split_once('.').ok_or(JwtFault::Header)?;
        let header = jsonwebtoken::decode_header(token).map_err(|_| JwtFault::Header)?;
        // A token with critical extensions must be refused unless all of them are supported, and none is.
        if header.crit.is_some() {
            return Err(JwtFault::Critical);
        }
        let keys = || self.keys.iter().zip(&self.prints);
        let has_signed = |(key, _): &(&Key, _)| key.has_signed(message.as_bytes(), signature);
        let mut fitting = keys().filter(|(key, _)| key.fits(header.alg, header.kid.as_deref()));
        let Some((key, print)) = fitting.find(has_signed) else {
            let (mut of_algorithm, mut of_both) = (keys(), keys());
            return Err(if !of_algorithm.any(|(key, _)| key.fits(header.alg, None)) {
                JwtFault::Algorithm
            } else if !of_both.any(|(key, _)| key.fits(header.alg, header.kid.as_deref())) {
                JwtFault::KeyId
            } else {
                JwtFault::Signature
            });
        };
        let payload = URL_SAFE_NO_PAD.decode(payload).ok();
        let claims = payload.and_then(|payload| Claims::new(&payload)).ok_or(JwtFault::Claims)?;
        Ok((claims, key.print, *print))
    }
}

/// A setting as a part of a fingerprint: an empty text differs from none.
fn part_of(setting: Option<&str>) -> Vec<u8> {
    setting.map(|text| [b"=", text.as_bytes()].concat()).unwrap_or_default()
}
