//! The claims of a token. They are signed by a configured key, but can still contain unexpected values, which must not cause a
//! panic.

use super::fault::JwtFault;
use super::key::KeyPrint;
use super::leeway::check_dates;
use crate::auth::fingerprint::Fingerprint;
use crate::auth::scope::Scope;
use serde_json::{Map, Value};

/// The name of the owner of a token without `sub`.
const NAMELESS: &str = "jwt";

/// The content of a verified token.
#[derive(Debug)]
pub(in crate::auth) struct Verified {
    /// `sub`, or `jwt` if the token has none.
    pub(in crate::auth) name: String,
    pub(in crate::auth) scopes: Vec<Scope>,
    /// `exp` plus the leeway.
    pub(in crate::auth) expires_ms: i64,
    /// The key that verified the token.
    pub(in crate::auth) key: KeyPrint,
    /// The fingerprint of that key and of all settings that decide whether the token is accepted.
    pub(in crate::auth) print: Fingerprint,
}

/// The payload of a token.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn new(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(Self)
    }

    pub(super) fn check_issuer(&self, wanted: Option<&str>) -> Result<(), JwtFault> {
        match wanted {
            Some(wanted) if self.0.get("iss").and_then(Value::as_str) != Some(wanted) => {
                Err(JwtFault::Issuer)
            }
            _ => Ok(()),
        }
    }

    /// Checks that `aud`, a name or a list of names, is or contains `wanted`.
    pub(super) fn check_audience(&self, wanted: Option<&str>) -> Result<(), JwtFault> {
        let Some(wanted) = wanted else { return Ok(()) };
        match self.0.get("aud") {
            Some(Value::String(name)) if name == wanted => Ok(()),
            Some(Value::Array(names)) if names.iter().any(|name| name.as_str() == Some(wanted)) => Ok(()),
            _ => Err(JwtFault::Audience),
        }
    }

    pub(super) fn verified(
        &self,
        now_ms: i64,
        leeway_ms: i64,
        key: KeyPrint,
        print: Fingerprint,
    ) -> Result<Verified, JwtFault> {
        let exp_ms = self.date_ms("exp")?.ok_or(JwtFault::NoExpiry)?;
        let nbf_ms = self.date_ms("nbf")?;
        let name = self.name()?;
        let expires_ms = check_dates(exp_ms, nbf_ms, now_ms, leeway_ms)?;
        Ok(Verified { name, scopes: self.scopes(), expires_ms, key, print })
    }

    /// Reads a claim that is a NumericDate (RFC 7519): seconds since 1970, possibly with a fraction. A date beyond the
    /// range of `i64` milliseconds becomes the nearest one in range.
    fn date_ms(&self, claim: &str) -> Result<Option<i64>, JwtFault> {
        let number = match self.0.get(claim) {
            None => return Ok(None),
            Some(Value::Number(number)) => number,
            Some(_) => return Err(JwtFault::Date),
        };
        if let Some(seconds) = number.as_i64() {
            return Ok(Some(seconds.saturating_mul(1_000)));
        }
        let seconds = number.as_f64().filter(|seconds| seconds.is_finite());
        // A cast from a float saturates.
        seconds.map(|seconds| Some((seconds * 1_000.0) as i64)).ok_or(JwtFault::Date)
    }

    /// The name of the owner. Refuses an empty name, which a rule could not name, and control characters, which could forge log
    /// lines.
    fn name(&self) -> Result<String, JwtFault> {
        match self.0.get("sub") {
            None => Ok(NAMELESS.to_owned()),
            Some(Value::String(name)) if !name.is_empty() && !name.contains(char::is_control) => {
                Ok(name.clone())
            }
            Some(_) => Err(JwtFault::Subject),
        }
    }

    /// The scopes of the claims `scope` and `scopes`. Unknown scopes are skipped, because identity providers put those of other
    /// services into the same claims.
    fn scopes(&self) -> Vec<Scope> {
        let words = |claim: &str| match self.0.get(claim) {
            Some(Value::String(words)) => words.split(' ').filter_map(|word| word.parse().ok()).collect(),
            Some(Value::Array(words)) => {
                words.iter().filter_map(Value::as_str).filter_map(|word| word.parse().ok()).collect()
            }
            _ => Vec::new(),
        };
        let mut scopes = words("scope");
        scopes.extend(words("scopes"));
        scopes
    }
}
