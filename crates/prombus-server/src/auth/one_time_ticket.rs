//! One-time tickets, for clients that cannot send a header.
//!
//! A browser's `EventSource` can send a token only in the URL, and URLs end up in logs. So a page uses its token to request a
//! ticket, and puts the ticket in the URL. The ticket works once, within 30 seconds.

use super::fingerprint::sha256;
use super::principal::Principal;
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Number of random bytes in a ticket.
const TICKET_BYTES: usize = 32;
/// How long a ticket can be used.
const LIFE_MS: i64 = 30_000;
/// Maximum number of tickets that were issued in the last 30 s, used or not.
const MAX_TICKETS: usize = 10_000;

/// No ticket can be issued now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many tickets were issued in the last 30 s: try again in a few seconds")]
pub(crate) struct TooManyTickets;

/// The issued tickets.
#[derive(Default)]
pub(crate) struct OneTimeTickets(Mutex<OpenTickets>);

#[derive(Default)]
struct OpenTickets {
    /// By hash, so that the time of a lookup reveals nothing about other tickets.
    by_hash: HashMap<[u8; 32], OpenTicket>,
    /// When each ticket ends, and its hash, in the order in which they were issued. A used ticket stays here, and counts against
    /// [`MAX_TICKETS`], until it would have expired.
    oldest_first: VecDeque<(i64, [u8; 32])>,
}

struct OpenTicket {
    /// The owner.
    principal: Arc<Principal>,
    /// When the ticket expires, in ms since 1970.
    ends_ms: i64,
}

impl OpenTickets {
    fn drop_ended(&mut self, now_ms: i64) {
        while let Some((ends_ms, hash)) = self.oldest_first.front()
            && *ends_ms <= now_ms
        {
            self.by_hash.remove(hash);
            self.oldest_first.pop_front();
        }
    }
}

impl OneTimeTickets {
    /// Issues a ticket for an authenticated client.
    pub(crate) fn issue(&self, principal: Arc<Principal>, now_ms: i64) -> Result<String, TooManyTickets> {
        let mut random = [0; TICKET_BYTES];
        // This fails only if the system has no randomness. Then no ticket can be issued.
        rand::fill(&mut random).map_err(|_| TooManyTickets)?;
        let ticket = URL_SAFE_NO_PAD.encode(random);
        let hash = sha256(ticket.as_bytes());
        let ends_ms = now_ms.saturating_add(LIFE_MS);

        let mut kept = self.0.lock();
        kept.drop_ended(now_ms);
        if kept.oldest_first.len() >= MAX_TICKETS {
            return Err(TooManyTickets);
        }
        kept.oldest_first.push_back((ends_ms, hash));
        kept.by_hash.insert(hash, OpenTicket { principal, ends_ms });
        Ok(ticket)
    }

    /// Uses up the ticket and returns its owner; `None` if the ticket is unknown, used or expired.
    pub(crate) fn redeem(&self, ticket: &str, now_ms: i64) -> Option<Arc<Principal>> {
        let found = self.0.lock().by_hash.remove(&sha256(ticket.as_bytes()))?;
        let is_good = now_ms < found.ends_ms && !found.principal.is_expired(now_ms);
        is_good.then_some(found.principal)
    }
}

impl fmt::Debug for OneTimeTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneTimeTickets(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_works_once() {
        let tickets = OneTimeTickets::default();
        let ticket = tickets.issue(Principal::anyone(), 1_000).unwrap();
        assert_eq!(ticket.len(), 43);
        assert!(tickets.redeem(&ticket[..42], 1_000).is_none() && tickets.redeem("", 1_000).is_none());
        assert_eq!(tickets.redeem(&ticket, 30_999).unwrap().name(), "anyone");
        assert!(tickets.redeem(&ticket, 1_000).is_none());
    }

    #[test]
    fn a_ticket_expires_after_30_seconds() {
        let tickets = OneTimeTickets::default();
        let ticket = tickets.issue(Principal::anyone(), 1_000).unwrap();
        assert!(tickets.redeem(&ticket, 31_000).is_none());
    }

    #[test]
    fn a_ticket_does_not_outlive_its_token() {
        let tickets = OneTimeTickets::default();
        let principal =
            Arc::new(Principal::new("a".to_owned(), Vec::new(), &[], Some(5_000), Default::default()));
        let ticket = tickets.issue(Arc::clone(&principal), 1_000).unwrap();
        assert!(tickets.redeem(&ticket, 5_000).is_none());
        let ticket = tickets.issue(principal, 1_000).unwrap();
        assert!(tickets.redeem(&ticket, 4_999).is_some());
    }

    #[test]
    fn there_are_at_most_10_000_tickets() {
        let tickets = OneTimeTickets::default();
        let first = tickets.issue(Principal::anyone(), 0).unwrap();
        for _ in 1..MAX_TICKETS {
            tickets.issue(Principal::anyone(), 10).unwrap();
        }
        assert_eq!(tickets.issue(Principal::anyone(), 29_999), Err(TooManyTickets));
        tickets.issue(Principal::anyone(), 30_000).unwrap();
        assert!(tickets.redeem(&first, 30_000).is_none());
        assert_eq!(tickets.issue(Principal::anyone(), 30_000), Err(TooManyTickets));
        assert!(tickets.issue(Principal::anyone(), 30_010).is_ok());
        assert!(tickets.0.lock().by_hash.len() <= 2);
    }
}
