//! Who a ticket was made for, as the ticket says it.

use super::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};

/// The token that a ticket was made with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TicketOwner {
    pub(super) name: String,
    pub(super) print: Fingerprint,
    /// Of a JWT: its scopes to read. A configured token has those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<String>,
    /// When the JWT ends; a configured token does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_ms: Option<i64>,
}
