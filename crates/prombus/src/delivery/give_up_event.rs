//! Giving up: an event whose attempts are used up leaves the group as a dead letter.
//!
//! The machine reports such an event to its caller. The caller writes the dead letter and the settle record in one commit
//! and then calls `gave_up`, or postpones the dead letter with `put_off`. A postponed event is reported again. Until
//! `gave_up`, the event counts as unsettled, and no member gets it.

use super::change::AttemptsChange;
use super::give_up::GiveUp;
use super::group::Group;
use super::lease::UnsettledState;
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

impl Group {
    /// Starts to give up an event whose attempts are used up.
    pub(super) fn give_up(&mut self, position: Position, error: String) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        let spent = unsettled.attempts;
        self.give_up_spending(position, spent, error);
    }

    /// Like [`give_up`](Self::give_up). `spent`: see [`GiveUp::spent`].
    pub(super) fn give_up_spending(&mut self, position: Position, spent: u32, error: String) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        unsettled.state = UnsettledState::GivingUp;
        let attempts = unsettled.attempts;
        self.given_up.push(GiveUp { position, attempts, spent, error, is_recorded: false });
    }

    /// Takes the events to give up. The caller ends each with [`gave_up`](Self::gave_up), [`park`](Self::park) or
    /// [`put_off`](Self::put_off).
    pub fn take_given_up(&mut self) -> Vec<GiveUp> {
        std::mem::take(&mut self.given_up)
    }

    /// Whether the event is still being given up. It is not if a seek has moved the group.
    pub fn is_giving_up(&self, position: Position) -> bool {
        self.unsettled.get(&position).is_some_and(|unsettled| unsettled.state == UnsettledState::GivingUp)
    }

    /// Settles the event. The caller has written its settle record, together with the dead letter.
    pub fn gave_up(&mut self, position: Position) {
        if self.is_giving_up(position) {
            self.forget(position);
            self.sources[position.source.0 as usize].settled.insert(position.seq, position.seq);
            self.counters.dead_lettered += 1;
        }
    }

    /// Settles the event without a dead letter, because it is itself a dead letter or was removed.
    pub fn park(&mut self, position: Position) {
        if self.is_giving_up(position) {
            self.gave_up(position);
            self.changes.settle(position.source, position.seq, position.seq);
            self.changes.is_wanted = true;
        }
    }

    /// Postpones the dead letter, which could not be written: the event is reported again at `until`, and after a restart.
    pub fn put_off(&mut self, mut give_up: GiveUp, until: Millis) {
        if !self.is_giving_up(give_up.position) {
            return;
        }
        if !std::mem::replace(&mut give_up.is_recorded, true) {
            self.changes.attempts(AttemptsChange {
                position: give_up.position,
                attempts: give_up.spent,
                not_before: 0,
                reason: Some(RedeliveryReason::MemberLost),
            });
        }
        self.put_off.push((until, give_up));
    }

    pub(super) fn fire_put_off(&mut self, now: Millis) {
        let mut at = 0;
        while at < self.put_off.len() {
            if self.put_off[at].0 <= now {
                let (_, give_up) = self.put_off.swap_remove(at);
                if self.is_giving_up(give_up.position) {
                    self.given_up.push(give_up);
                }
            } else {
                at += 1;
            }
        }
    }
}
