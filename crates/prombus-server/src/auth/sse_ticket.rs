//! Tickets for one subscription, which also work for reconnects.
//!
//! A browser's `EventSource` reconnects by itself, to the same URL, so a one-time ticket would fail there. A ticket of this kind
//! works for one subscription (a topic or pattern with its query) for 24 hours. It must be used for the first time within 30 s,
//! without the header `Last-Event-ID`. Every later use must have this header, which an `EventSource` sends when it reconnects.
//!
//! Tickets are not stored. A ticket contains its owner and is signed with a key that is in the store, so it survives restarts.
//! Only the process that issued a ticket knows whether it was used; after a restart a ticket works only for reconnects.

use super::authenticator::Authenticator;
use super::fingerprint::{first_half, sha256};
use super::principal::Principal;
use super::scope::Scope;
use super::ticket_owner::TicketOwner;
use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The first use must come within this time.
pub(crate) const FIRST_USE_MS: i64 = 30_000;
/// The ticket expires after this time.
pub(crate) const LIFE_MS: i64 = 24 * 3_600_000;
/// Size of the key.
pub(crate) const KEY_BYTES: usize = 32;
/// Maximum number of used tickets that are remembered. Tickets that had to be forgotten, and all older ones, are treated like
/// tickets of another process: they work only for reconnects.
const MAX_USED: usize = 100_000;
/// Distinguishes these tickets from one-time tickets.
const PREFIX: &str = "s1.";

/// Why a ticket is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum TicketRefused {
    #[error("the ticket is not valid")]
    Bad,
    #[error("the ticket is for another topic or query")]
    Elsewhere,
    #[error("the ticket has expired")]
    Expired,
    #[error("the ticket was already used: it works again only with the header Last-Event-ID")]
    Used,
    #[error("the ticket was already used, or was issued before a restart of the server: get a new one")]
    Unknown,
    #[error(
        "the ticket has not been used yet: its first use must come within 30 s and without Last-Event-ID"
    )]
    NeverUsed,
    #[error("the ticket's token is no longer valid")]
    Revoked,
}

/// The system has no randomness, so no ticket can be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the system has no randomness")]
pub(crate) struct NoRandomness;

/// The subscription that a ticket is for: a topic or pattern, and the query without the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketScope(u128);

impl TicketScope {
    /// The order of the query's names does not matter. The order of several values of the same name does.
    pub(crate) fn new<'a>(topic: &str, query: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut pairs: Vec<_> = query.filter(|(name, _)| *name != "ticket").collect();
        pairs.sort_by_key(|(name, _)| *name);
        let parts = pairs.iter().flat_map(|(name, value)| [*name, *value]);
        let hashes: Vec<u8> = [topic].into_iter().chain(parts).flat_map(|it| sha256(it.as_bytes())).collect();
        Self(first_half(sha256(&hashes)))
    }
}

/// The content of a ticket.
#[derive(Debug, Serialize, Deserialize)]
struct TicketContent {
    /// Identifies the ticket.
    number: u128,
    /// A random number, which identifies the process that issued the ticket.
    maker: u64,
    /// When it was issued.
    made_ms: i64,
    /// The [`TicketScope`].
    subscription: u128,
    owner: TicketOwner,
}

/// Issues and redeems tickets.
pub(crate) struct SseTickets {
    /// A random number, which identifies this process.
    maker: u64,
    used: Mutex<Used>,
}

/// Tickets of this process that were used.
#[derive(Default)]
struct Used {
    numbers: HashSet<u128>,
    /// In the order of their first uses, with the time at which each was issued.
    order: VecDeque<(i64, u128)>,
    /// The latest time at which a forgotten ticket was issued. For tickets issued at or before this time, it is not known whether
    /// they were used.
    forgotten_ms: i64,
}

/// How long a ticket that is issued now for this principal can be used.
pub(crate) fn sse_ticket_life_ms(principal: &Principal, now_ms: i64) -> i64 {
    principal.expires_ms().map_or(LIFE_MS, |expires_ms| expires_ms.saturating_sub(now_ms).clamp(0, LIFE_MS))
}

impl Used {
    fn forget(&mut self, now_ms: i64) {
        while let Some(&(made_ms, number)) = self.order.front()
            && (made_ms.saturating_add(LIFE_MS) <= now_ms || self.order.len() > MAX_USED)
        {
            self.order.pop_front();
            self.numbers.remove(&number);
            self.forgotten_ms = self.forgotten_ms.max(made_ms);
        }
    }
}

impl Default for SseTickets {
    fn default() -> Self {
        // Without randomness no ticket is issued either, so the default does no harm.
        let maker = random().unwrap_or_default() as u64;
        Self { maker, used: Mutex::new(Used { forgotten_ms: i64::MIN, ..Used::default() }) }
    }
}

impl SseTickets {
    /// The name of the signing key in the store.
    pub(crate) const KEY_NAME: &str = "ticket-key";

    /// A new key, for the store.
    pub(crate) fn new_key() -> Result<Vec<u8>, NoRandomness> {
        let mut key = vec![0; KEY_BYTES];
        rand::fill(&mut key).map_err(|_| NoRandomness)?;
        Ok(key)
    }

    /// Whether this is a ticket of this kind, valid or not.
    pub(crate) fn is_one(ticket: &str) -> bool {
        ticket.starts_with(PREFIX)
    }

    /// Issues a ticket for an authenticated client. The caller has checked that the client may read the subscription.
    pub(crate) fn issue(
        &self,
        key: &[u8],
        principal: &Principal,
        scope: TicketScope,
        now_ms: i64,
    ) -> Result<String, NoRandomness> {
        let number = random()?;
        let expires_ms = principal.expires_ms();
        let scopes = principal.scopes().iter().filter(|scope| matches!(scope, Scope::Subscribe(_)));
        let owner = TicketOwner {
            name: principal.name().to_owned(),
            print: principal.fingerprint(),
            scopes: if expires_ms.is_some() { scopes.map(ToString::to_string).collect() } else { Vec::new() },
            expires_ms,
        };
        let content =
            TicketContent { number, maker: self.maker, made_ms: now_ms, subscription: scope.0, owner };
        let content = serde_json::to_vec(&content).expect("numbers and text are JSON");
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &content);
        Ok(format!("{PREFIX}{}.{}", URL_SAFE_NO_PAD.encode(&content), URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The owner of the ticket, with its current permissions. `is_reconnect`: whether the request has a `Last-Event-ID`.
    pub(crate) fn redeem(
        &self,
        key: &[u8],
        ticket: &str,
        scope: TicketScope,
        is_reconnect: bool,
        auth: &Authenticator,
        now_ms: i64,
    ) -> Result<Arc<Principal>, TicketRefused> {
        let content = checked(key, ticket).ok_or(TicketRefused::Bad)?;
        if content.subscription != scope.0 {
            return Err(TicketRefused::Elsewhere);
        }
        let ends_ms = content.made_ms.saturating_add(LIFE_MS);
        if ends_ms <= now_ms {
            return Err(TicketRefused::Expired);
        }
        let owner = auth.owner(&content.owner, now_ms).ok_or(TicketRefused::Revoked)?;
        self.record_use(&content, is_reconnect, now_ms)?;
        Ok(Arc::new(owner.until(ends_ms)))
    }

    fn record_use(
        &self,
        content: &TicketContent,
        is_reconnect: bool,
        now_ms: i64,
    ) -> Result<(), TicketRefused> {
        let mut used = self.used.lock();
        used.forget(now_ms);
        let is_known = content.maker == self.maker && content.made_ms > used.forgotten_ms;
        if is_reconnect {
            let was_used = !is_known || used.numbers.contains(&content.number);
            return if was_used { Ok(()) } else { Err(TicketRefused::NeverUsed) };
        }
        if !is_known {
            return Err(TicketRefused::Unknown);
        }
        if used.numbers.contains(&content.number) {
            return Err(TicketRefused::Used);
        }
        if content.made_ms.saturating_add(FIRST_USE_MS) <= now_ms {
            return Err(TicketRefused::NeverUsed);
        }
        used.numbers.insert(content.number);
        used.order.push_back((content.made_ms, content.number));
        Ok(())
    }
}

fn random() -> Result<u128, NoRandomness> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(u128::from_be_bytes(bytes))
}

fn checked(key: &[u8], ticket: &str) -> Option<TicketContent> {
    let (content, signature) = ticket.strip_prefix(PREFIX)?.split_once('.')?;
    let (content, signature) =
        (URL_SAFE_NO_PAD.decode(content).ok()?, URL_SAFE_NO_PAD.decode(signature).ok()?);
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), &content, &signature).ok()?;
    serde_json::from_slice(&content).ok()
}

impl fmt::Debug for SseTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SseTickets(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{AuthOptions, TokenHash, TokenOptions};

    const KEY: &[u8] = &[7; KEY_BYTES];

    fn auth() -> Authenticator {
        let token =
            TokenOptions { name: "page".to_owned(), secret: TokenHash::of("secret"), scopes: Scope::all() };
        Authenticator::new(&AuthOptions { tokens: vec![token], ..AuthOptions::default() }).expect("auth")
    }

    fn subscription() -> TicketScope {
        TicketScope::new("orders", [("from", "earliest")].into_iter())
    }

    fn issued(tickets: &SseTickets, auth: &Authenticator, now_ms: i64) -> String {
        let principal = auth.authenticate(Some("secret"), now_ms).expect("a token");
        tickets.issue(KEY, &principal, subscription(), now_ms).expect("a ticket")
    }

    #[test]
    fn the_first_use_must_come_within_30_seconds_and_works_once() {
        let (tickets, auth) = (SseTickets::default(), auth());
        let redeem = |ticket: &str, is_reconnect, now_ms| {
            tickets
                .redeem(KEY, ticket, subscription(), is_reconnect, &auth, now_ms)
                .map(|it| it.name().to_owned())
        };
        let ticket = issued(&tickets, &auth, 1_000);
        assert!(ticket.len() < 600 && SseTickets::is_one(&ticket), "{ticket}");
        assert_eq!(redeem(&ticket, true, 2_000), Err(TicketRefused::NeverUsed));
        assert_eq!(redeem(&ticket, false, 30_999), Ok("page".to_owned()));
        assert_eq!(redeem(&ticket, false, 30_999), Err(TicketRefused::Used));
        assert_eq!(redeem(&ticket, true, 1_000 + LIFE_MS - 1), Ok("page".to_owned()));
        assert_eq!(redeem(&ticket, true, 1_000 + LIFE_MS), Err(TicketRefused::Expired));
        let late = issued(&tickets, &auth, 1_000);
        assert_eq!(redeem(&late, false, 31_000), Err(TicketRefused::NeverUsed));
        assert_eq!(redeem(&late, true, 31_000), Err(TicketRefused::NeverUsed));
    }

    #[test]
    fn after_a_restart_a_ticket_can_only_reconnect() {
        let (before, after, auth) = (SseTickets::default(), SseTickets::default(), auth());
        let ticket = issued(&before, &auth, 1_000);
        let redeem = |is_reconnect, now_ms| {
            after.redeem(KEY, &ticket, subscription(), is_reconnect, &auth, now_ms).map(|_| ())
        };
        assert_eq!(redeem(false, 2_000), Err(TicketRefused::Unknown));
        assert_eq!(redeem(true, LIFE_MS), Ok(()));
        assert_eq!(redeem(true, 1_000 + LIFE_MS), Err(TicketRefused::Expired));
    }

    #[test]
    fn a_stream_ends_with_its_ticket() {
        let (tickets, auth) = (SseTickets::default(), auth());
        let ticket = issued(&tickets, &auth, 1_000);
        let principal = tickets.redeem(KEY, &ticket, subscription(), false, &auth, 2_000).expect("good");
        assert_eq!(principal.expires_ms(), Some(1_000 + LIFE_MS));
    }

    #[test]
    fn another_key_and_another_subscription_are_refused() {
        let (tickets, auth) = (SseTickets::default(), auth());
        let ticket = issued(&tickets, &auth, 1_000);
        let other = [8; KEY_BYTES];
        let redeem =
            |key: &[u8], wanted| tickets.redeem(key, &ticket, wanted, false, &auth, 2_000).map(|_| ());
        assert_eq!(redeem(&other, subscription()), Err(TicketRefused::Bad));
        for (topic, query) in [
            ("order", vec![("from", "earliest")]),
            ("orders", vec![]),
            ("orders", vec![("from", "earliest"), ("from", "latest")]),
            ("orders", vec![("fromearliest", "")]),
        ] {
            let wanted = TicketScope::new(topic, query.into_iter());
            assert_eq!(redeem(KEY, wanted), Err(TicketRefused::Elsewhere));
        }
        let same = TicketScope::new("orders", [("ticket", "x"), ("from", "earliest")].into_iter());
        assert_eq!(redeem(KEY, same), Ok(()));
    }

    #[test]
    fn uses_are_forgotten_in_order_when_there_are_too_many() {
        let (tickets, auth) = (SseTickets::default(), auth());
        let first = issued(&tickets, &auth, 1_000);
        let redeem = |ticket: &str, is_reconnect| {
            tickets.redeem(KEY, ticket, subscription(), is_reconnect, &auth, 2_000).map(|_| ())
        };
        assert_eq!(redeem(&first, false), Ok(()));
        {
            let mut used = tickets.used.lock();
            for number in 0..MAX_USED as u128 {
                used.order.push_back((1_500, number));
                used.numbers.insert(number);
            }
        }
        // The first ticket is treated like one of another process.
        assert_eq!((redeem(&first, true), redeem(&first, false)), (Ok(()), Err(TicketRefused::Unknown)));
        assert!(tickets.used.lock().numbers.len() <= MAX_USED);
    }
}
