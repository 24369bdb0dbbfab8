//! The gateway.

// The server that calls the crate-private parts comes with the other modules.
#[allow(dead_code, unused_imports)]
mod auth;
mod options;
#[allow(dead_code)]
mod tls;

pub use auth::{
    Action, AuthOptions, AuthRefused, AuthSetupError, Authenticator, Effect, JwtKey, JwtOptions, Principal,
    Rule, Scope, ScopeError, TokenHash, TokenHashError, TokenOptions,
};
pub use options::{ConnectionLimits, Rate, RateOptions, ServerOptions, TlsOptions};
pub use tls::TlsSetupError;
