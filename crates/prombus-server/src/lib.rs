//! The prombus server as a library: WebSocket and HTTP on one port, in front of any [`prombus::Backend`].
//!
//! A program calls [`Server::bind`] and [`Server::run`]. The binary `prombus` only parses arguments and calls them, so a test can
//! run the same server in its own process. [`Server::bind_shared`] is for gateways: servers that share one store. One of them
//! leads and serves the store; the others relay connections to the leader.

mod auth;
mod buffer_budget;
mod clock;
mod connection;
mod gateway;
mod http;
mod listener;
mod live;
mod metrics;
mod options;
mod peer;
mod rate_limit;
mod relay;
mod reload;
mod role;
mod serve_error;
mod server;
mod shared;
mod shown_settings;
mod shutdown;
#[cfg(feature = "test-util")]
pub mod test_util;
mod tls;
mod ws;

pub use auth::{
    Action, AuthChanges, AuthOptions, AuthRefused, AuthSetupError, Authenticator, Effect, JwtKey, JwtOptions,
    Principal, Rule, Scope, ScopeError, TokenHash, TokenHashError, TokenOptions,
};
pub use options::{ConnectionLimits, Rate, RateOptions, ServerOptions, TlsOptions};
pub use reload::{LiveFigures, ReloadChanges, ReloadError, ReloadHandle};
pub use role::{LeaderEndpoint, ServerRole};
pub use serve_error::ServeError;
pub use server::{Server, raise_descriptor_limit};
pub use shown_settings::{SettingSource, ShownSetting, ShownSettings};
pub use tls::{Certificate, TlsSetupError, check_tls};
