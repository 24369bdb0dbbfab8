//! JSON Web Tokens, signed by an identity provider.
//!
//! A key has one algorithm, and a token is checked only against keys of the algorithm in its header. So a header cannot make the
//! server use a public key as a secret, and `none` matches no key. `key.rs` loads the keys, `claims.rs` reads the claims. Keys
//! are never fetched over the network, and keys in a token's header (`jwk`, `jku`, `x5u`) are ignored.

mod claims;
mod fault;
mod key;
mod leeway;
mod options;
mod verifier;

pub(super) use fault::JwtFault;
pub(super) use key::KeyPrint;
pub use options::{JwtKey, JwtOptions};
pub(super) use verifier::JwtVerifier;
