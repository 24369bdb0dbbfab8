//! Taking leases back as if they had not been given: the event is due at once, and the attempt does not count.

use super::change::AttemptsChange;
use super::group::Group;
use super::lease::Unsettled;
use super::lease::UnsettledState;
use super::member::MemberId;
use super::{Millis, Position};

impl Group {
    /// Takes a lease back as if it had not happened.
    pub fn give_back_lease(&mut self, member: MemberId, position: Position, now: Millis) {
        if let Some(unsettled) = self.unlease(member, position, now) {
            // The record of its start is taken back with this one, and written again when it is leased again.
            unsettled.is_started = false;
            let (attempts, reason) = (unsettled.attempts, unsettled.reason);
            if attempts > 0 {
                self.changes.attempts(AttemptsChange { position, attempts, not_before: 0, reason });
            }
        }
    }

    /// Takes back a lease whose event the member has not got: it did not fit, or could not be read. Nothing is written down:
    /// the record of the attempt's start serves the next lease.
    pub fn take_back_lease(&mut self, member: MemberId, position: Position, now: Millis) {
        self.unlease(member, position, now);
    }

    /// Ends a lease and its attempt; the event is due at once.
    fn unlease(&mut self, member: MemberId, position: Position, now: Millis) -> Option<&mut Unsettled> {
        if !self.is_leased_to(member, position) {
            return None;
        }
        self.release(member);
        let unsettled = self.unsettled.get_mut(&position)?;
        unsettled.attempts -= 1;
        unsettled.is_started = unsettled.attempts > 0;
        unsettled.state = UnsettledState::Due;
        unsettled.at = now;
        if !std::mem::replace(&mut unsettled.is_queued, true) {
            self.due.push_back(position);
        }
        Some(unsettled)
    }
}
