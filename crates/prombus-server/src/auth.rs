//! Who may do what: tokens are turned into a [`Principal`], and a principal says yes or no.
//!
//! Everything that guards the gateway asks here, so WebSocket and HTTP cannot differ. Nothing configured means that
//! everybody may do everything; then `origin_guard.rs` sees to it that only this machine gets in. There is no I/O after the start,
//! and no clock: callers say what time it is.

mod authenticator;
mod error;
mod fingerprint;
mod jwt;
mod one_time_ticket;
mod options;
mod origin_guard;
mod pattern;
mod principal;
mod refused_origins;
mod rule;
mod scope;
mod sse_ticket;
#[cfg(test)]
pub(crate) mod temporary_file;
mod ticket_owner;
mod token;

pub use authenticator::Authenticator;
pub use error::{AuthRefused, AuthSetupError};
pub use jwt::{JwtKey, JwtOptions};
pub(crate) use one_time_ticket::OneTimeTickets;
pub use options::AuthOptions;
pub(crate) use origin_guard::{Guard, GuardRefused};
pub use principal::Principal;
pub use rule::{Action, Effect, Rule};
pub use scope::{Scope, ScopeError};
pub(crate) use sse_ticket::{SseTickets, TicketRefused, TicketScope, sse_ticket_life_ms};
pub use token::{TokenHash, TokenHashError, TokenOptions};
