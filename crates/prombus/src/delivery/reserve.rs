//! Reserving: a member takes fresh seqs to read their events. Reserved seqs whose events are not delivered to the member
//! become fresh again, in seq order.

use super::group::Group;
use super::member::{MemberId, ReservedRange};
use super::{Millis, Position, SourceId};

/// A pull that filters the events of several topics may reserve at least this many seqs of each topic.
const SHARE_MIN: u32 = 32;

impl Group {
    /// Reserves events that a member may read now, at most `want`: due redeliveries go into `redelivered`, ranges of fresh
    /// seqs into `reserved`. No lease runs yet: [`hand_out`](Self::hand_out) and [`deliver`](Self::deliver) lease the events
    /// that were read. With `scan`, for a member that filters events, about that many fresh seqs are reserved even if `want` is
    /// lower. Returns how many events of the reserved fresh seqs may be delivered to the member.
    ///
    /// A member may have only one pull (from `reserve` until its events are delivered or given back) open at a time.
    ///
    /// `durable` is the newest durable generation of the group's records.
    #[expect(
        clippy::too_many_arguments,
        reason = "a struct of the arguments would be built and destructured in one place only"
    )]
    pub fn reserve(
        &mut self,
        member: MemberId,
        want: u32,
        scan: Option<u32>,
        now: Millis,
        durable: u64,
        redelivered: &mut Vec<Position>,
        reserved: &mut Vec<ReservedRange>,
    ) -> u32 {
        self.advance(now);
        let Some(state) = self.members.get_mut(&member) else { return 0 };
        state.is_idle = true;
        let settings = state.settings;
        let window = if self.is_paused { 0 } else { state.window().min(want) };
        let window = self.reserve_due(member, settings, window, durable, redelivered);
        self.sweep_timers();
        let taken = (self.unsettled.len() - self.unreadable_unsettled) as u64 + self.reserved_count;
        let room = u64::from(settings.max_unsettled).saturating_sub(taken);
        let allowed = room.min(u64::from(window)) as u32;
        if allowed > 0 {
            let topics = self.active.len().min(self.side_by_side);
            if topics > 1 {
                // The reader takes `allowed` events from all these topics together.
                let share = scan.map_or(allowed, |scan| (scan / topics as u32).max(SHARE_MIN));
                self.reserve_side_by_side(member, topics, u64::from(share), durable, reserved);
            } else {
                self.reserve_fresh(member, scan.unwrap_or(allowed), durable, reserved);
            }
        }
        self.members.get_mut(&member).expect("found above").is_idle =
            redelivered.is_empty() && reserved.is_empty();
        allowed
    }

    /// The maximum number of seqs that the last pull from several topics could reserve in each topic. If a reserved range has
    /// this length, its topic may have more.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Reserves fresh seqs of several topics, up to `share` of each. Other members cannot reserve from these topics until the
    /// reservations end.
    fn reserve_side_by_side(
        &mut self,
        member: MemberId,
        topics: usize,
        share: u64,
        durable: u64,
        reserved: &mut Vec<ReservedRange>,
    ) {
        self.share = share;
        let ahead = self.mark_ahead.max(2 * share);
        for _ in 0..topics {
            let Some(id) = self.active.pop_front() else { break };
            let source = &mut self.sources[id.0 as usize];
            let limit = source.mark.limit(durable);
            let range = source.fresh.front_mut().expect("an active topic has fresh seqs");
            if range.0 > limit {
                let next_seq = range.0;
                self.active.push_back(id);
                self.await_mark(id, next_seq, ahead);
                continue;
            }
            let count = (range.1.min(limit) - range.0 + 1).min(share);
            let taken = ReservedRange { source: id, first_seq: range.0, last_seq: range.0 + count - 1 };
            range.0 += count;
            if range.0 > range.1 {
                source.fresh.pop_front();
            }
            source.is_active = false;
            source.held_by = Some(member);
            self.reserved_count += count;
            let state = self.members.get_mut(&member).expect("found by the caller");
            state.reserved.push(taken);
            reserved.push(taken);
            self.keep_mark_ahead(id, taken.last_seq, ahead);
        }
    }

    /// Reserves fresh seqs of the topics in rotation.
    fn reserve_fresh(
        &mut self,
        member: MemberId,
        most: u32,
        durable: u64,
        reserved: &mut Vec<ReservedRange>,
    ) {
        let mut left = u64::from(most);
        // A member that scans many events at once must not wait for a new lease mark each time.
        let ahead = self.mark_ahead.max(2 * left);
        let mut above_mark = 0;
        while left > 0 {
            let Some(&id) = self.active.front() else { break };
            let source = &mut self.sources[id.0 as usize];
            let limit = source.mark.limit(durable);
            let range = source.fresh.front_mut().expect("an active topic has fresh seqs");
            if range.0 > limit {
                let next_seq = range.0;
                self.await_mark(id, next_seq, ahead);
                above_mark += 1;
                if above_mark == self.active.len() {
                    break;
                }
                self.active.rotate_left(1);
                continue;
            }
            above_mark = 0;
            let count = (range.1.min(limit) - range.0 + 1).min(left);
            let taken = ReservedRange { source: id, first_seq: range.0, last_seq: range.0 + count - 1 };
            range.0 += count;
            left -= count;
            if range.0 > range.1 {
                source.fresh.pop_front();
            }
            // The next pull starts with the next topic.
            self.active.pop_front();
            if source.fresh.is_empty() {
                source.is_active = false;
            } else {
                self.active.push_back(id);
            }
            self.reserved_count += count;
            let member = self.members.get_mut(&member).expect("found above");
            member.reserved.push(taken);
            reserved.push(taken);
            self.keep_mark_ahead(id, taken.last_seq, ahead);
        }
    }

    /// Ends a member's exclusive use of a topic (`Source::held_by`): other members may reserve from it again.
    #[inline]
    pub(super) fn release_topic(&mut self, member: MemberId, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        if source.held_by == Some(member) {
            source.held_by = None;
            self.activate(id);
        }
    }

    /// Puts the rest of a reservation back into the fresh seqs.
    #[inline]
    pub(super) fn give_back(&mut self, range: ReservedRange) {
        if range.first_seq > range.last_seq {
            return;
        }
        self.sources[range.source.0 as usize].add_fresh(range.first_seq, range.last_seq);
        self.activate(range.source);
    }

    /// Ends reservations of a member without leasing anything: their seqs become fresh again.
    pub(super) fn give_back_reserved(&mut self, member: MemberId, ranges: Vec<ReservedRange>) {
        for range in ranges {
            self.reserved_count -= range.count();
            self.give_back(range);
            self.release_topic(member, range.source);
        }
    }

    /// Puts back a range that a member reserved and will not read now.
    pub fn unreserve(&mut self, member: MemberId, range: ReservedRange) {
        let Some(state) = self.members.get_mut(&member) else { return };
        if let Some(at) = state.reserved.iter().position(|&it| it == range) {
            state.reserved.swap_remove(at);
            self.give_back_reserved(member, vec![range]);
        }
    }
}
