//! How JWTs are checked, as it is configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How JWTs are checked.
///
/// `exp` is required, `nbf` is kept. Scopes are read from the claim `scope` (words in a string) and from `scopes` (a list);
/// other words are ignored. `sub` is the name that rules and logs use; without it, `jwt`.
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
