//! Members that join, leave, are lost, paused or held, and the pause and the clean close of a group.

use super::change::AttemptsChange;
use super::group::Group;
use super::lease::{Unsettled, UnsettledState};
use super::member::{Member, MemberId, MemberSettings};
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

/// How much longer overdue leases run after a hold, so that acks that arrived during the hold are read first.
const GRACE_MS: Millis = 1_000;

impl Group {
    /// Adds a member.
    pub fn join(&mut self, settings: MemberSettings) -> MemberId {
        self.next_member += 1;
        let id = MemberId(self.next_member);
        self.members.insert(id, Member::new(settings));
        self.prepare_marks();
        id
    }

    /// How many more deliveries a member may get in one pull.
    pub fn window(&self, member: MemberId) -> u32 {
        self.members.get(&member).map_or(0, |member| self.window_of(member))
    }

    /// The window of a member; zero while the group is paused.
    pub(super) fn window_of(&self, member: &Member) -> u32 {
        if self.is_paused { 0 } else { member.window() }
    }

    /// How many deliveries a member has in flight, and whether it is paused. `None` if it is not in the group.
    pub fn member_status(&self, member: MemberId) -> Option<(u32, bool)> {
        self.members.get(&member).map(|it| (it.in_flight, it.is_paused))
    }

    /// Whether a member is in the group.
    pub fn has_member(&self, member: MemberId) -> bool {
        self.members.contains_key(&member)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.members.keys().copied()
    }

    /// How many members the group has.
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Whether an event is leased to a member.
    pub fn is_leased_to(&self, member: MemberId, position: Position) -> bool {
        let unsettled = self.unsettled.get(&position);
        unsettled.is_some_and(|it| it.state == UnsettledState::Leased && it.holder == member)
    }

    /// Whether a member has reserved an event for redelivery.
    pub(super) fn is_reserved_by(&self, member: MemberId, position: Position) -> bool {
        self.unsettled.get(&position).is_some_and(|it| it.state == UnsettledState::Reserved(member))
    }

    /// Removes a member that is gone without leaving. Its deliveries have failed and go to other members at once. Redeliveries
    /// that it had only reserved go to other members too, but have not failed.
    pub fn lose(&mut self, member: MemberId, now: Millis) {
        for position in self.remove_member(member) {
            if self.put_back_redelivery(member, position, now) {
                continue;
            }
            self.counters.lost += 1;
            self.fail(position, RedeliveryReason::MemberLost, now, "member_lost");
        }
        self.advance(now);
    }

    /// Removes a member that leaves cleanly. Its deliveries go to other members at once, as if they had not happened.
    pub fn leave(&mut self, member: MemberId, now: Millis) {
        for position in self.remove_member(member) {
            self.give_back_lease(member, position, now);
        }
    }

    /// Removes a member and returns its leases and the redeliveries that it reserved, in order.
    fn remove_member(&mut self, member: MemberId) -> Vec<Position> {
        let Some(state) = self.members.remove(&member) else { return Vec::new() };
        self.give_back_reserved(member, state.reserved);
        if state.in_flight == 0 && !state.may_read_redeliveries {
            return Vec::new();
        }
        let theirs = self.unsettled.iter().filter(|(_, it)| match it.state {
            UnsettledState::Leased => it.holder == member,
            UnsettledState::Reserved(reader) => reader == member,
            _ => false,
        });
        let mut positions: Vec<Position> = theirs.map(|(&position, _)| position).collect();
        positions.sort_unstable();
        positions
    }

    /// Prepares the group for a clean close: all members leave, recorded starts of attempts that were not delivered are
    /// undone, and the lease marks become exact.
    pub fn close(&mut self, now: Millis) {
        for member in self.members().collect::<Vec<_>>() {
            self.leave(member, now);
        }
        for (&position, unsettled) in &mut self.unsettled {
            if matches!(unsettled.state, UnsettledState::Waiting | UnsettledState::Due)
                && std::mem::replace(&mut unsettled.is_started, false)
            {
                let Unsettled { attempts, at, reason, .. } = *unsettled;
                let not_before = if unsettled.state == UnsettledState::Waiting { at } else { 0 };
                self.changes.attempts(AttemptsChange { position, attempts, not_before, reason });
            }
        }
        self.write_exact_marks();
    }

    /// Pauses or resumes a member. A paused member gets no new events; its leases keep running.
    pub fn pause(&mut self, member: MemberId, is_paused: bool) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_paused = is_paused;
        }
    }

    /// Pauses or resumes the whole group. While it is paused, no member gets events: members stay, and their leases keep
    /// running and can be settled. The caller records the pause.
    pub fn pause_all(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether the whole group is paused.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The member that holds the lease of an event; `None` if the event is not leased.
    pub fn holder(&self, position: Position) -> Option<MemberId> {
        let unsettled = self.unsettled.get(&position)?;
        (unsettled.state == UnsettledState::Leased).then_some(unsettled.holder)
    }

    /// Notes that the server stops reading from a member: its leases do not expire until the server reads again.
    pub fn hold(&mut self, member: MemberId) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_held = true;
        }
    }

    /// Notes that the server reads from the member again. Leases that expired meanwhile are extended a little, for acks that
    /// are on their way.
    pub fn unhold(&mut self, member: MemberId, now: Millis) {
        // Moves leases that expired during the hold to `overdue`.
        self.advance(now);
        let Some(state) = self.members.get_mut(&member) else { return };
        state.is_held = false;
        for position in std::mem::take(&mut state.overdue) {
            let unsettled = self.unsettled.get_mut(&position);
            let Some(unsettled) = unsettled
                .filter(|it| it.holder == member && it.state == UnsettledState::Leased && it.at <= now)
            else {
                continue;
            };
            unsettled.at = now + GRACE_MS;
            self.timers.add(now + GRACE_MS, position);
        }
    }
}
