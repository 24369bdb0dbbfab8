//! The gateway of prombus, as a library: WebSocket and HTTP on one port, in front of any [`prombus::Backend`].
//!
//! [`Server::bind`] and [`Server::run`] are all there is to it; the binary `prombus` only parses arguments and calls them, so a
//! test can run the same server in its own process.

mod auth;
mod budget;
mod gateway;
mod metrics;
mod options;
mod rate;

pub use auth::{
    Action, AuthOptions, AuthSetupError, Effect, JwtKey, JwtOptions, Rule, Scope, TokenHash, TokenOptions,
};
pub use options::{ConnectionLimits, Rate, RateOptions, ServerOptions, TlsOptions};
