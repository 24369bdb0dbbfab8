//! Decides how many events a subscription pulls at once, so that leases do not expire before their events are handed out: an
//! event that the subscriber has not seen must not use up its attempts.

use crate::delivery::{MemberSettings, Millis};

/// The number of events of the first pull, when the speed of the subscriber is unknown.
const FIRST_PULL: u32 = 1;

/// How many events to pull at once. The number doubles while each pull is handed out within a small part of the lease time,
/// and falls to one otherwise.
#[derive(Debug)]
pub(super) struct PullPace {
    /// The size of the next pull.
    events: u32,
    /// When the last pull was made; `None` before the first pull, and while a pull is in progress.
    pub(super) pulled_at: Option<Millis>,
}

/// A pull should be handed out within the lease time divided by this.
const PACE_DIVISOR: u64 = 8;

impl PullPace {
    pub(super) fn new() -> Self {
        Self { events: FIRST_PULL, pulled_at: None }
    }

    /// How many events to pull next, after the whole last pull was handed out.
    pub(super) fn next(&mut self, now: Millis, settings: &MemberSettings) -> u32 {
        if let Some(pulled_at) = self.pulled_at.take() {
            let is_quick = now.saturating_sub(pulled_at) <= settings.ack_timeout_ms / PACE_DIVISOR;
            self.events = if is_quick { self.events.saturating_mul(2).min(settings.batch_size) } else { 1 };
        }
        self.events
    }
}
