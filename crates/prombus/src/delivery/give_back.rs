//! Undoing deliveries as if they had not happened: the event is due at once, and the attempt does not count.

use super::change::AttemptsChange;
use super::group::Group;
use super::lease::Unsettled;
use super::lease::UnsettledState;
use super::member::MemberId;
use super::{Millis, Position};

impl Group {
    /// Undoes a member's lease, or its reservation of a redelivery.
    pub fn give_back_lease(&mut self, member: MemberId, position: Position, now: Millis) {
        let is_leased = self.is_leased_to(member, position);
        if !is_leased && !self.is_reserved_by(member, position) {
            return;
        }
        if is_leased {
            self.release(member);
        }
        let Some(unsettled) = self.make_due(position, now) else { return };
        unsettled.attempts -= u32::from(is_leased);
        // The record below also cancels the recorded start of the attempt. Before the next lease, the start is recorded again.
        unsettled.is_started = false;
        let (attempts, reason) = (unsettled.attempts, unsettled.reason);
        if attempts > 0 {
            self.changes.attempts(AttemptsChange { position, attempts, not_before: 0, reason });
        }
    }

    /// Puts back a redelivery that the member reserved but did not get, because it did not fit or its read failed or was
    /// cancelled. Nothing is recorded: the record of the attempt's start is also valid for the next reservation. Returns
    /// false if the member has not reserved this redelivery.
    pub fn put_back_redelivery(&mut self, member: MemberId, position: Position, now: Millis) -> bool {
        self.is_reserved_by(member, position) && self.make_due(position, now).is_some()
    }

    fn make_due(&mut self, position: Position, now: Millis) -> Option<&mut Unsettled> {
        let unsettled = self.unsettled.get_mut(&position)?;
        unsettled.state = UnsettledState::Due;
        unsettled.at = now;
        if !std::mem::replace(&mut unsettled.is_queued, true) {
            self.due.push_back(position);
        }
        Some(unsettled)
    }
}
