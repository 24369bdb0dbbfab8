//! Delivering: events that a member has read are leased to it; seqs that a filter dropped or that were removed are skipped.

use super::group::Group;
use super::lease::{Leased, Unsettled};
use super::member::{MemberId, ReservedRange};
use super::{Millis, Position, SourceId};

impl Group {
    /// Ends a reservation: the seqs `kept` (in order) are leased to the member, the other seqs up to `scanned_to` are
    /// skipped, and later ones become fresh again. Returns false, and leases nothing, if the reservation is void because of
    /// a seek or because the member is gone.
    pub fn deliver(
        &mut self,
        member: MemberId,
        range: ReservedRange,
        scanned_to: u64,
        kept: &[u64],
        now: Millis,
        leased: &mut Vec<Leased>,
    ) -> bool {
        let Some(state) = self.members.get_mut(&member) else { return false };
        // Search from the end: a pull from several topics ends its last reservation first.
        let Some(at) = state.reserved.iter().rposition(|&it| it == range) else { return false };
        state.reserved.swap_remove(at);
        self.reserved_count -= range.count();
        let settings = state.settings;
        state.in_flight += kept.len() as u32;
        let deadline = now.saturating_add(settings.ack_timeout_ms);
        let mark = &mut self.sources[range.source.0 as usize].mark;
        if let Some(&last) = kept.last() {
            mark.leased(last);
        }
        let mark = *mark;
        let mut passed_from = range.first_seq;
        for &seq in kept {
            if seq > passed_from {
                self.pass_over(range.source, passed_from, seq - 1);
            }
            passed_from = seq + 1;
            let position = Position { source: range.source, seq };
            let reason = mark.reason(seq);
            self.counters.redelivered_restarted += u64::from(reason.is_some());
            let lease = Unsettled::first_lease(member, &settings, now, deadline, reason);
            self.unsettled.insert(position, lease);
            self.timers.add(deadline, position);
            leased.push(Leased { position, attempt: 1, deadline, reason });
        }
        self.leased_count += kept.len();
        self.counters.delivered += kept.len() as u64;
        let source = &mut self.sources[range.source.0 as usize];
        if !source.unreadable.is_empty() {
            source.now_readable(range.first_seq, scanned_to);
            self.activate(range.source);
        }
        if passed_from <= scanned_to {
            self.pass_over(range.source, passed_from, scanned_to);
        }
        self.give_back(ReservedRange { first_seq: scanned_to + 1, ..range });
        self.release_topic(member, range.source);
        self.sweep_timers();
        true
    }

    /// Settles seqs that no member gets, because a filter dropped them or they were removed.
    #[inline]
    fn pass_over(&mut self, source: SourceId, first: u64, last: u64) {
        self.sources[source.0 as usize].settled.insert(first, last);
        self.changes.settle(source, first, last);
        self.counters.passed_over += last - first + 1;
    }

    /// Settles an event whose redelivery the member has reserved, because the event was removed or a filter dropped it. Does
    /// nothing if the reservation is void.
    pub fn pass_over_redelivery(&mut self, member: MemberId, position: Position) {
        if self.is_reserved_by(member, position) && self.forget(position).is_some() {
            self.pass_over(position.source, position.seq, position.seq);
        }
    }
}
