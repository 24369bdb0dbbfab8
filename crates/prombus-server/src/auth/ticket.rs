//! Tickets: a token for one use, for places that cannot send a header.
//!
//! A browser's `EventSource` and `WebSocket` put what they have in the address, and addresses end up in logs. So a page asks
//! for a ticket with its token, and uses that: it works once, for 30 seconds.

use super::Principal;
use super::token::TokenHash;
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

const TICKET_BYTES: usize = 32;
const LIFE_MS: i64 = 30_000;
const MAX_TICKETS: usize = 10_000;

/// No ticket could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many tickets wait to be used: try again in some seconds")]
pub(crate) struct TooManyTickets;

/// The tickets that are out.
#[derive(Default)]
pub(crate) struct Tickets;

impl Tickets {
    /// A ticket for one who got in.
    pub(crate) fn issue(&self, _principal: Arc<Principal>, _now_ms: i64) -> Result<String, TooManyTickets> {
        Err(TooManyTickets)
    }

    /// Who the ticket was made for. It cannot be used again.
    pub(crate) fn redeem(&self, _ticket: &str, _now_ms: i64) -> Option<Arc<Principal>> {
        None
    }
}
