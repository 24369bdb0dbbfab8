//! Redelivering: events whose next attempt is due are reserved before fresh ones, read, and leased again.
//!
//! A read may take longer than a lease. So the attempt counts, and its lease runs, only from the hand-out. A reservation has
//! no time limit, and a member that is lost during the read has used no attempt.
//!
//! Every failure, and the start of every attempt from the second on, is recorded durably before the event is delivered again.
//! So a crash never lowers the number of used attempts, and an event that crashes the process each time is eventually given
//! up.

use super::change::AttemptsChange;
use super::group::Group;
use super::lease::{Leased, UnsettledState};
use super::member::{MemberId, MemberSettings};
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

impl Group {
    /// Reserves due redeliveries, and records the start of their next attempts if it is not recorded yet. Returns how much of
    /// the window is left for fresh events. Redeliveries that wait until a record is durable take up the window too.
    pub(super) fn reserve_due(
        &mut self,
        member: MemberId,
        settings: MemberSettings,
        window: u32,
        durable: u64,
        redelivered: &mut Vec<Position>,
    ) -> u32 {
        if self.due.is_empty() {
            return window;
        }
        let (mut count, mut room) = (0, None);
        // Events that wait until a record is durable. They keep their places in the queue.
        let mut gated: Vec<Position> = Vec::new();
        while count < window {
            let Some(position) = self.due.pop_front() else { break };
            let Some(unsettled) = self.unsettled.get_mut(&position) else { continue };
            unsettled.is_queued = false;
            if unsettled.state != UnsettledState::Due {
                continue;
            }
            let is_gated = unsettled.gate > durable;
            let is_spent = unsettled.attempts >= settings.max_attempts;
            if !is_gated && is_spent {
                let error = unsettled.reason.map_or("member_lost", RedeliveryReason::as_str).to_owned();
                self.give_up(position, error);
                continue;
            }
            if is_gated || unsettled.needs_start() {
                unsettled.is_queued = true;
                if unsettled.needs_start() && !is_spent {
                    // An attempt that ends in a crash must count, so that an event that crashes the process is eventually
                    // given up.
                    self.changes.attempts(unsettled.start(position));
                    self.ungated.push(position);
                }
                gated.push(position);
                // Do not start more attempts than the members that wait for events could take.
                if gated.len() >= *room.get_or_insert_with(|| self.idle_room()) {
                    break;
                }
                continue;
            }
            unsettled.state = UnsettledState::Reserved(member);
            redelivered.push(position);
            count += 1;
        }
        let gated_count = gated.len() as u32;
        gated.into_iter().rev().for_each(|position| self.due.push_front(position));
        self.members.get_mut(&member).expect("the caller found it").may_read_redeliveries = count > 0;
        window.saturating_sub(count).saturating_sub(gated_count)
    }

    /// Hands an event to the member that reserved and read its redelivery: the next attempt begins. Returns `None` if the
    /// reservation is void, because the last holder settled the event, a seek moved the group, or the member is gone.
    pub fn hand_out(&mut self, member: MemberId, position: Position, now: Millis) -> Option<Leased> {
        let state = self.members.get_mut(&member)?;
        let unsettled = self.unsettled.get_mut(&position)?;
        if unsettled.state != UnsettledState::Reserved(member) {
            return None;
        }
        let settings = state.settings;
        let deadline = now.saturating_add(settings.ack_timeout_ms);
        unsettled.lease_again(member, &settings, now, deadline);
        if std::mem::replace(&mut unsettled.is_unreadable, false) {
            self.unreadable_unsettled -= 1;
        }
        let (attempt, reason) = (unsettled.attempts, unsettled.reason);
        state.in_flight += 1;
        self.leased_count += 1;
        self.counters.count_redelivery(reason);
        self.timers.add(deadline, position);
        Some(Leased { position, attempt, deadline, reason })
    }

    /// Ends a lease whose attempt failed. The event is given up if this was its last attempt, and redelivered at `at`
    /// otherwise.
    pub(super) fn fail(&mut self, position: Position, reason: RedeliveryReason, at: Millis, error: &str) {
        let Some(unsettled) = self.unsettled.get(&position) else { return };
        debug_assert_eq!(unsettled.state, UnsettledState::Leased);
        let is_last = unsettled.attempts >= unsettled.max_attempts;
        self.release(unsettled.holder);
        if is_last {
            self.give_up(position, error.to_owned());
        } else {
            self.wait(position, reason, at);
        }
    }

    /// Makes the event wait until `at` for its redelivery. It is not redelivered before the record of its
    /// attempts is durable.
    pub(super) fn wait(&mut self, position: Position, reason: RedeliveryReason, at: Millis) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        unsettled.state = UnsettledState::Waiting;
        unsettled.reason = Some(reason);
        unsettled.at = at;
        unsettled.is_started = false;
        // No member gets it before the caller has assigned a generation to this change.
        unsettled.gate = u64::MAX;
        let attempts = unsettled.attempts;
        self.timers.add(at, position);
        self.ungated.push(position);
        self.changes.attempts(AttemptsChange { position, attempts, not_before: at, reason: Some(reason) });
    }

    /// How many events the members that wait for events could take now.
    pub(super) fn idle_room(&self) -> usize {
        let idle = self.members.values().filter(|member| member.is_idle);
        idle.map(|member| self.window_of(member) as usize).sum()
    }
}
