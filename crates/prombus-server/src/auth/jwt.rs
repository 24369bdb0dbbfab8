//! JSON Web Tokens: what an identity provider has signed.
//!
//! A key has one algorithm, and a token is only checked against keys of the algorithm that its header names. So a header
//! cannot talk a public key into being a secret, and `none` fits no key. Keys are loaded in `key.rs`, what a token says is read
//! in `claims.rs`. Nothing here fetches keys from anywhere: what a header says of keys (`jwk`, `jku`, `x5u`) is not looked at.

mod claims;
mod key;
mod leeway;
mod options;
mod verifier;

pub use options::{JwtKey, JwtOptions};
pub(super) use verifier::JwtVerifier;
