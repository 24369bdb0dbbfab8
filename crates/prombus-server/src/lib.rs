//! The gateway of prombus, as a library: WebSocket and HTTP on one port, in front of any [`prombus::Backend`].
//!
//! [`Server::bind`] and [`Server::run`] are all there is to it; the binary `prombus` only parses arguments and calls them, so a
//! test can run the same server in its own process. [`Server::bind_shared`] is for stores that several gateways share: it serves
//! a backend while its process leads, and relays to the leader otherwise.

mod auth;
mod buffer_budget;
mod clock;
mod connection;
mod gateway;
mod http;
mod listener;
mod metrics;
mod options;
mod peer;
mod rate_limit;
mod relay;
mod role;
mod serve_error;
mod server;
mod shared;
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
pub use role::{LeaderEndpoint, ServerRole};
pub use serve_error::ServeError;
pub use server::{Server, raise_descriptor_limit};
pub use tls::{TlsSetupError, check_tls};
