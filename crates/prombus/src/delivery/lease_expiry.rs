//! Timers of a group: leases that expire, waits that end, and retries (of reads, and of postponed dead letters) that are due.

use super::group::Group;
use super::lease::UnsettledState;
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

impl Group {
    /// Does everything that is due at `now`: expires leases, ends waits, and starts retries.
    pub fn advance(&mut self, now: Millis) {
        let mut room = None;
        while let Some(timer) = self.timers.pop_due(now) {
            let room = *room.get_or_insert_with(|| self.idle_room());
            for seq in timer.first_seq..=timer.last_seq {
                self.timer_fired(Position { source: timer.source, seq }, timer.at, room);
            }
        }
        if !self.put_off.is_empty() {
            self.fire_put_off(now);
        }
        if self.retry_reads_at <= now {
            self.retry_reads(now);
        }
    }

    /// Handles the timer of an event. `room` is how many events the members that wait for events could take now.
    fn timer_fired(&mut self, position: Position, at: Millis, room: usize) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        if unsettled.at > at {
            // The lease was extended, or the event was leased again, since this timer was set. An extended lease needs a new
            // timer. A new lease has its own timer; a second one is harmless.
            if unsettled.state == UnsettledState::Leased {
                let later = unsettled.at;
                self.timers.add(later, position);
            }
            return;
        }
        match unsettled.state {
            UnsettledState::Waiting => {
                unsettled.state = UnsettledState::Due;
                // The event may still be in the queue, if it was nacked while it was due.
                if !std::mem::replace(&mut unsettled.is_queued, true) {
                    self.due.push_back(position);
                }
                if self.due.len() <= room && unsettled.needs_start() {
                    self.changes.attempts(unsettled.start(position));
                    self.ungated.push(position);
                }
            }
            UnsettledState::Leased => {
                let holder = unsettled.holder;
                if let Some(member) = self.members.get_mut(&holder).filter(|member| member.is_held) {
                    member.overdue.push(position);
                    return;
                }
                self.counters.expired += 1;
                self.fail(position, RedeliveryReason::LeaseExpired, at, "lease_expired");
            }
            UnsettledState::Due | UnsettledState::Reserved(_) | UnsettledState::GivingUp => {}
        }
    }

    /// When to call [`advance`](Self::advance) again. `None` if no timer is set and nothing is to be retried.
    pub fn wake_at(&self) -> Option<Millis> {
        let put_off = self.put_off.iter().map(|&(at, _)| at).min();
        let retry_reads = (self.retry_reads_at < Millis::MAX).then_some(self.retry_reads_at);
        self.timers.next_at().into_iter().chain(put_off).chain(retry_reads).min()
    }

    /// How many timers the group has. The leases of one pull share a timer.
    pub fn timer_count(&self) -> usize {
        self.timers.count()
    }

    /// Removes the stale timers if most timers are stale.
    #[inline]
    pub(super) fn sweep_timers(&mut self) {
        if self.timers.needs_sweep(self.unsettled.len()) {
            let timed = self
                .unsettled
                .iter()
                .filter(|(_, it)| matches!(it.state, UnsettledState::Leased | UnsettledState::Waiting));
            self.timers.rebuild(timed.map(|(&position, unsettled)| (unsettled.at, position)));
        }
    }
}
