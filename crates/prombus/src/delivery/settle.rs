//! Settling: ack, nack, give up, extend.
//!
//! An ack or nack applies if its sender holds the lease, or if its sender was the last holder and no member holds the lease
//! now. Otherwise the ack or nack is stale.

use super::group::Group;
use super::lease::UnsettledState;
use super::member::MemberId;
use super::nack_backoff::backoff_ms;
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

/// The shortest extension.
const EXTENSION_MIN_MS: Millis = 1_000;

/// The sender of an ack, nack or extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A member of the group.
    Member(MemberId),
    /// A caller that names only the event, not a member. It acts for the last holder of the event.
    LastHolder,
}

/// Whether an ack or a nack was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The ack or nack was applied.
    Counted,
    /// Nothing changed: the event was leased to another member since, or is settled or being given up.
    Stale,
}

impl Group {
    /// The state of the event, if the sender may settle it.
    fn state_for(&self, sender: Sender, position: Position) -> Option<UnsettledState> {
        let unsettled = self.unsettled.get(&position)?;
        let is_theirs = match sender {
            Sender::Member(member) => member == unsettled.holder,
            // An event that was not delivered since the restart has no holder.
            Sender::LastHolder => unsettled.holder != MemberId(0),
        };
        (is_theirs && unsettled.state != UnsettledState::GivingUp).then_some(unsettled.state)
    }

    /// Counts a stale ack or nack of an event that is in none of the group's topics.
    pub fn count_stale(&mut self) {
        self.counters.stale += 1;
    }

    /// Settles an event.
    pub fn ack(&mut self, sender: Sender, position: Position) -> AckOutcome {
        if self.state_for(sender, position).is_none() {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        }
        self.forget(position);
        self.sources[position.source.0 as usize].settled.insert(position.seq, position.seq);
        self.changes.settle(position.source, position.seq, position.seq);
        self.changes.is_wanted = true;
        self.counters.acked += 1;
        AckOutcome::Counted
    }

    /// Fails an attempt. The event is redelivered after `delay`, or after a backoff if `delay` is `None`.
    pub fn nack(
        &mut self,
        sender: Sender,
        position: Position,
        delay: Option<Millis>,
        error: Option<&str>,
        now: Millis,
    ) -> AckOutcome {
        let Some(state) = self.state_for(sender, position) else {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        };
        self.counters.nacked += 1;
        self.last_errors.put(position, error);
        let attempts = self.unsettled[&position].attempts;
        let delay = delay
            .unwrap_or_else(|| backoff_ms(attempts, self.jitter ^ position.seq.wrapping_mul(0x2545_f491)));
        if state == UnsettledState::Leased {
            self.fail(
                position,
                RedeliveryReason::Nacked,
                now.saturating_add(delay),
                error.unwrap_or("nacked"),
            );
        } else {
            // The lease had expired, so the attempt has already failed and does not count again.
            self.wait(position, RedeliveryReason::Nacked, now.saturating_add(delay));
            self.sweep_timers();
        }
        if delay == 0 {
            // The event is due now. If a member waits for events, the start of the next attempt is written in the same record
            // as this nack.
            self.advance(now);
        }
        AckOutcome::Counted
    }

    /// Gives up an event at once.
    pub fn nack_dead(&mut self, sender: Sender, position: Position, error: Option<&str>) -> AckOutcome {
        let Some(state) = self.state_for(sender, position) else {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        };
        self.counters.nacked += 1;
        let unsettled = &self.unsettled[&position];
        // If the dead letter is postponed, the event must not be delivered after a restart: record it as if all attempts
        // were used up.
        let (holder, spent) = (unsettled.holder, unsettled.attempts.max(unsettled.max_attempts));
        if state == UnsettledState::Leased {
            self.release(holder);
        }
        self.give_up_spending(position, spent, error.unwrap_or("nacked").to_owned());
        AckOutcome::Counted
    }

    /// Makes a running lease end `extend_ms` (at least a second) from now. Returns the new end, or `None` if the sender does
    /// not hold the lease.
    pub fn extend(
        &mut self,
        sender: Sender,
        position: Position,
        extend_ms: Millis,
        now: Millis,
    ) -> Option<Millis> {
        self.state_for(sender, position).filter(|&state| state == UnsettledState::Leased)?;
        let unsettled = self.unsettled.get_mut(&position)?;
        let deadline = now.saturating_add(extend_ms.max(EXTENSION_MIN_MS));
        // If the end moves later, the old timer notices it when it fires. A new timer is needed if the end moves earlier,
        // or if the old timer has already fired because the server was not reading from the member (`is_held`).
        if deadline < unsettled.at || unsettled.at <= now {
            self.timers.add(deadline, position);
        }
        unsettled.at = deadline;
        self.sweep_timers();
        Some(deadline)
    }
}
