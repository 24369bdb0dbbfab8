//! Authentication and authorization: resolves a token to its owner, a [`Principal`], and checks what the owner may do.
//!
//! WebSocket and HTTP both use this module, so their checks cannot differ. Without any configuration every client may do
//! everything. Then the server listens only on loopback addresses (unless `is_insecure` is set), and `origin_guard.rs` refuses
//! requests of web pages of other origins. There is no I/O after startup and reloads, and no clock: callers pass the time.

mod authenticator;
mod error;
mod fingerprint;
mod jwt;
mod one_time_ticket;
mod options;
mod origin_guard;
mod pattern;
mod principal;
mod refusal;
mod refused_origins;
mod rule;
mod scope;
mod sse_ticket;
#[cfg(test)]
pub(crate) mod temporary_file;
mod ticket_owner;
mod token;
mod validity;

pub use authenticator::Authenticator;
pub use error::{AuthRefused, AuthSetupError};
pub use jwt::{JwtKey, JwtOptions};
pub(crate) use one_time_ticket::OneTimeTickets;
pub use options::AuthOptions;
pub(crate) use origin_guard::{Guard, GuardRefused};
pub use principal::Principal;
pub(crate) use refusal::NEEDS_ADMIN;
pub use rule::{Action, Effect, Rule};
pub use scope::{Scope, ScopeError};
pub(crate) use sse_ticket::{SseTickets, TicketRefused, TicketScope, sse_ticket_life_ms};
pub use token::{TokenHash, TokenHashError, TokenOptions};
pub use validity::AuthChanges;
pub(crate) use validity::Validity;
