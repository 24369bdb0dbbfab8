//! Static tokens from the configuration. Only their hashes are kept.
//!
//! A lookup takes the same time for every token, known or not: it compares with all hashes, in constant time.

use super::error::AuthSetupError;
use super::fingerprint::{Fingerprint, HASH_BYTES, sha256};
use super::principal::Principal;
use super::rule::Rule;
use super::scope::Scope;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

const PREFIX: &str = "sha256:";

/// A static token.
#[derive(Clone)]
pub struct TokenOptions {
    /// The name of its owner in rules and logs.
    pub name: String,
    /// The hash of the token.
    pub secret: TokenHash,
    /// The permissions of the token. Empty: none.
    pub scopes: Vec<Scope>,
}

impl fmt::Debug for TokenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenOptions")
            .field("name", &self.name)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// The SHA-256 of a token. As text: `sha256:` and 64 hex digits.
///
/// The hash is not salted: unlike passwords, tokens are long and random, so a salt would not make them harder to guess.
#[derive(Clone)]
pub struct TokenHash([u8; HASH_BYTES]);

/// A text is not the hash of a token. The message does not contain the text, which may be the token itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not the hash of a token: expected \"sha256:\" and 64 hex digits")]
pub struct TokenHashError;

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &str) -> Self {
        Self(sha256(token.as_bytes()))
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for TokenHash {}

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, TokenHashError> {
        let digits = text.strip_prefix(PREFIX).ok_or(TokenHashError)?.as_bytes();
        if digits.len() != 2 * HASH_BYTES {
            return Err(TokenHashError);
        }
        let mut hash = [0; HASH_BYTES];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(TokenHashError);
            *byte = u8::try_from(16 * digit(0)? + digit(1)?).map_err(|_| TokenHashError)?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// The static tokens, each with its principal.
pub(super) struct StaticTokens(Vec<(TokenHash, Arc<Principal>)>);

impl StaticTokens {
    pub(super) fn new(tokens: &[TokenOptions], rules: &[Rule]) -> Result<Self, AuthSetupError> {
        let entry = |(index, token): (usize, &TokenOptions)| {
            if token.name.is_empty() {
                return Err(AuthSetupError::NamelessToken { position: index + 1 });
            }
            let print = Fingerprint::of(&[b"token", &token.secret.0]);
            let principal = Principal::new(token.name.clone(), token.scopes.clone(), rules, None, print);
            Ok((token.secret.clone(), Arc::new(principal)))
        };
        Ok(Self(tokens.iter().enumerate().map(entry).collect::<Result<_, _>>()?))
    }

    /// The owner of a token. Compares with all tokens, so that the time reveals nothing.
    pub(super) fn find(&self, token: &str) -> Option<Arc<Principal>> {
        let hash = TokenHash::of(token);
        let mut found = None;
        for (known, principal) in &self.0 {
            if *known == hash && found.is_none() {
                found = Some(principal);
            }
        }
        found.cloned()
    }

    /// The owners of all tokens.
    pub(super) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.0.iter().map(|(_, principal)| &**principal)
    }

    /// The owner with this name.
    pub(super) fn by_name(&self, name: &str) -> Option<&Principal> {
        self.principals().find(|principal| principal.name() == name)
    }

    /// The owner of the token with this fingerprint.
    pub(super) fn by_fingerprint(&self, fingerprint: Fingerprint) -> Option<&Arc<Principal>> {
        self.0.iter().map(|(_, principal)| principal).find(|principal| principal.fingerprint() == fingerprint)
    }
}

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, principal)| principal.name())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_survives_a_round_trip_as_text() {
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(TokenHash::of("abc").to_string(), abc);
        assert_eq!(abc.parse(), Ok(TokenHash::of("abc")));
        assert_eq!(format!("sha256:{}", abc[7..].to_uppercase()).parse(), Ok(TokenHash::of("abc")));
    }

    #[test]
    fn an_invalid_hash_is_refused_and_not_shown() {
        let hash = TokenHash::of("abc").to_string();
        let not_hex = format!("sha256:{}", "g".repeat(64));
        let signed = format!("sha256:{}", "+f".repeat(32));
        let wide = format!("sha256:{}", "é".repeat(32));
        for text in
            ["", "secret", "sha256:", &hash[7..], &hash[..70], &format!("{hash}0"), &not_hex, &signed, &wide]
        {
            assert_eq!(text.parse::<TokenHash>(), Err(TokenHashError), "{text}");
        }
        assert!(!TokenHashError.to_string().contains("secret"));
    }

    #[test]
    fn debug_shows_no_hash() {
        let options =
            TokenOptions { name: "billing".to_owned(), secret: TokenHash::of("abc"), scopes: Scope::all() };
        let shown = format!(
            "{options:?} {:?} {:?}",
            options.secret,
            StaticTokens::new(std::slice::from_ref(&options), &[])
        );
        assert!(
            shown.contains("billing") && !shown.contains("ba78") && !shown.contains("186, 120"),
            "{shown}"
        );
    }
}
