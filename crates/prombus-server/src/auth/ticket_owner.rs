//! The owner of a ticket, as the ticket contains it.

use super::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};

/// The token with which a ticket was issued.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TicketOwner {
    /// The token's name, or the JWT's `sub`.
    pub(super) name: String,
    /// The fingerprint of the token, or of the key that verified the JWT and its settings.
    pub(super) print: Fingerprint,
    /// For a JWT: its `subscribe` scopes. A static token has the scopes of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<String>,
    /// When the JWT expires; `None` for a static token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_ms: Option<i64>,
}
