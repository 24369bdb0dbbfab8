//! The gateway of prombus, as a library: WebSocket and HTTP on one port, in front of any [`prombus::Backend`].
//!
//! [`Server::bind`] and [`Server::run`] are all there is to it; the binary `prombus` only parses arguments and calls them, so a
//! test can run the same server in its own process.

mod auth;
mod buffer_budget;
mod clock;
mod connection;
mod gateway;
mod http;
mod metrics;
mod options;
mod peer;
mod rate_limit;
mod server;
mod shutdown;
#[cfg(feature = "test-util")]
pub mod test_util;
mod tls;
mod ws;

pub use auth::{
    Action, AuthOptions, AuthRefused, AuthSetupError, Authenticator, Effect, JwtKey, JwtOptions, Principal,
    Rule, Scope, ScopeError, TokenHash, TokenHashError, TokenOptions,
};
pub use options::{ConnectionLimits, Rate, RateOptions, ServerOptions, TlsOptions};
pub use server::{ServeError, Server, raise_descriptor_limit};
pub use tls::{TlsSetupError, check_tls};
