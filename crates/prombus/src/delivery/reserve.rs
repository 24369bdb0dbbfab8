//! Reserving: a member takes fresh seqs to read them. Seqs that it does not deliver go back to the front.

use super::group::Group;
use super::member::{MemberId, ReservedRange};
use super::{Millis, Position, SourceId};

/// Of each topic that a pull looks through, it reserves at least this many seqs.
const SHARE_MIN: u32 = 32;

impl Group {
    /// Takes for a member what it may read now: due redeliveries into `redelivered`, and ranges of fresh seqs into `reserved`,
    /// `want` in all. No lease runs yet: [`hand_out`](Self::hand_out) and [`deliver`](Self::deliver) make leases of what was
    /// read. A member that looks at events before it takes them may reserve up to `scan` fresh seqs
    /// instead. Returns how many of the reserved seqs it may deliver.
    ///
    /// A member has one such pull open at a time.
    ///
    /// `durable` is the newest generation of the group's records that is durable.
    #[expect(
        clippy::too_many_arguments,
        reason = "one pull; a struct of them would be made and taken apart in one place"
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
        state.is_hungry = true;
        let settings = state.settings;
        let window = state.window().min(want);
        let window = self.reserve_due(member, settings, window, durable, redelivered);
        self.sweep_timers();
        let taken = (self.unsettled.len() - self.unreadable_unsettled) as u64 + self.reserved_count;
        let room = u64::from(settings.max_unsettled).saturating_sub(taken);
        let allowed = room.min(u64::from(window)) as u32;
        if allowed > 0 {
            let topics = self.active.len().min(self.side_by_side);
            if topics > 1 {
                // The reader takes `allowed` of all of them together.
                let share = scan.map_or(allowed, |scan| (scan / topics as u32).max(SHARE_MIN));
                self.reserve_side_by_side(member, topics, u64::from(share), durable, reserved);
            } else {
                self.reserve_fresh(member, scan.unwrap_or(allowed), durable, reserved);
            }
        }
        self.members.get_mut(&member).expect("looked at above").is_hungry =
            redelivered.is_empty() && reserved.is_empty();
        allowed
    }

    /// A range of this length that a pull of several topics reserved may not be all that its topic has.
    pub fn share(&self) -> u64 {
        self.share
    }

    /// Reserves fresh seqs of several topics, up to `share` of each, and holds the topics.
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
            let range = source.fresh.front_mut().expect("an active topic has something fresh");
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
            let state = self.members.get_mut(&member).expect("looked at by the caller");
            state.reserved.push(taken);
            reserved.push(taken);
            self.keep_mark_ahead(id, taken.last_seq, ahead);
        }
    }

    /// Reserves fresh seqs, of the topics in turn.
    fn reserve_fresh(
        &mut self,
        member: MemberId,
        most: u32,
        durable: u64,
        reserved: &mut Vec<ReservedRange>,
    ) {
        let mut left = u64::from(most);
        // A member that looks at many events at once must not wait for a mark each time.
        let ahead = self.mark_ahead.max(2 * left);
        let mut above_mark = 0;
        while left > 0 {
            let Some(&id) = self.active.front() else { break };
            let source = &mut self.sources[id.0 as usize];
            let limit = source.mark.limit(durable);
            let range = source.fresh.front_mut().expect("an active topic has something fresh");
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
            // The next pull looks at the next topic first.
            self.active.pop_front();
            if source.fresh.is_empty() {
                source.is_active = false;
            } else {
                self.active.push_back(id);
            }
            self.reserved_count += count;
            let member = self.members.get_mut(&member).expect("looked at above");
            member.reserved.push(taken);
            reserved.push(taken);
            self.keep_mark_ahead(id, taken.last_seq, ahead);
        }
    }

    /// A member's reservation of a topic ends: others may reserve from it again.
    #[inline]
    pub(super) fn release_topic(&mut self, member: MemberId, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        if source.held_by == Some(member) {
            source.held_by = None;
            self.activate(id);
        }
    }

    /// Puts the rest of a reservation back where it came from.
    #[inline]
    pub(super) fn give_back(&mut self, range: ReservedRange) {
        if range.first_seq > range.last_seq {
            return;
        }
        self.sources[range.source.0 as usize].add_fresh(range.first_seq, range.last_seq);
        self.activate(range.source);
    }

    /// Voids what a member has reserved, without leasing any of it.
    pub(super) fn give_back_reserved(&mut self, member: MemberId, ranges: Vec<ReservedRange>) {
        for range in ranges {
            self.reserved_count -= range.count();
            self.give_back(range);
            self.release_topic(member, range.source);
        }
    }

    /// Puts back what a member reserved and will not read now.
    pub fn unreserve(&mut self, member: MemberId, range: ReservedRange) {
        let Some(state) = self.members.get_mut(&member) else { return };
        if let Some(at) = state.reserved.iter().position(|&it| it == range) {
            state.reserved.swap_remove(at);
            self.give_back_reserved(member, vec![range]);
        }
    }
}
