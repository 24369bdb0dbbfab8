//! The options of JWT verification.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The options of JWT verification.
///
/// `exp` is required; `nbf` is respected if present. Scopes are read from the claims `scope` (words in a string) and `scopes` (a
/// list); unknown scopes are ignored. `sub` is the name for rules and logs; without it, the name is `jwt`.
#[derive(Clone, Debug)]
pub struct JwtOptions {
    /// The keys. A token must be signed by one of them, with the key's own algorithm.
    pub keys: Vec<JwtKey>,
    /// The required value of `iss`; with `None`, `iss` is not checked.
    pub issuer: Option<String>,
    /// The value that `aud` must be or contain; with `None`, `aud` is not checked.
    pub audience: Option<String>,
    /// How much clocks may differ. Default: 30 s.
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
    /// A file with public keys in PEM. The type of the key determines the algorithm: RSA is RS256, P-256 is ES256, Ed25519 is
    /// EdDSA.
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
