//! The gateway of prombus, as a library: WebSocket and HTTP on one port, in front of any [`prombus::Backend`].
//!
//! [`Server::bind`] and [`Server::run`] are all there is to it; the binary `prombus` only parses arguments and calls them, so a
//! test can run the same server in its own process.

// The server that calls the crate-private parts comes with the other modules.
#[allow(dead_code, unused_imports)]
mod auth;
mod budget;
mod gateway;
#[allow(dead_code)]
mod http;
mod metrics;
mod options;
mod rate;
#[allow(dead_code)]
mod tls;

pub use auth::{
    Action, AuthOptions, AuthRefused, AuthSetupError, Authenticator, Effect, JwtKey, JwtOptions, Principal,
    Rule, Scope, ScopeError, TokenHash, TokenHashError, TokenOptions,
};
pub use options::{ConnectionLimits, Rate, RateOptions, ServerOptions, TlsOptions};
pub use tls::TlsSetupError;
