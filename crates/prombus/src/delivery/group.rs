//! The group itself: what may be leased, what is reserved for whom, and the leases.
//!
//! A seq goes: granted (fresh), reserved by a member that reads it, then leased to it, or settled because a filter dropped it
//! or it is gone. What is reserved but not delivered goes back to the front.

use super::change::Changes;
use super::dead_letter::GiveUp;
use super::last_error::{ErrorBudget, LastErrors};
use super::lease::{State, Timers, Unsettled, UnsettledMap};
use super::mark::{LeaseMark, MARK_AHEAD};
use super::member::{Member, MemberId, MemberSettings, ReservedRange};
use super::settled::Settled;
use super::unreadable::Unreadable;
use super::{Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Of each topic that a pull looks through, it reserves at least this many seqs.
const SHARE_MIN: u32 = 32;

/// A delivery to hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The event.
    pub position: Position,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When the lease ends.
    pub deadline: Millis,
    /// Why it is delivered again.
    pub reason: Option<RedeliveryReason>,
}

/// What was kept of a topic's progress, to start from.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// What is settled.
    pub settled: Settled,
    /// Attempts of unsettled events: used up, not before, why.
    pub attempts: BTreeMap<u64, (u32, Millis, Option<RedeliveryReason>)>,
    /// The lease mark: no event above it was leased.
    pub leased_to: u64,
    /// Events up to here may have been delivered before a restart: the lease mark, or the end of the topic if that is lower.
    pub restarted_to: u64,
}

/// What happened in a group since it is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Deliveries, repeated ones included.
    pub delivered: u64,
    /// Acks that counted.
    pub acked: u64,
    /// Nacks that counted.
    pub nacked: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Deliveries whose member was lost.
    pub lost: u64,
    /// Deliveries again because a lease had run out.
    pub redelivered_expired: u64,
    /// Deliveries again because of a nack.
    pub redelivered_nacked: u64,
    /// Deliveries again because a member was lost.
    pub redelivered_lost: u64,
    /// Deliveries of events that may have been delivered before a restart.
    pub redelivered_restarted: u64,
    /// Acks and nacks that changed nothing.
    pub stale: u64,
    /// Events that were given up.
    pub dead_lettered: u64,
    /// Events that a filter dropped, or that are gone.
    pub passed_over: u64,
    /// Events that retention took before the group had them.
    pub missed: u64,
}

impl GroupCounters {
    /// Counts a delivery again for this reason, or takes one back that never reached its member.
    pub(super) fn count_redelivery(&mut self, reason: Option<RedeliveryReason>, by: i64) {
        let add = |counter: &mut u64| *counter = counter.saturating_add_signed(by);
        add(&mut self.delivered);
        match reason {
            Some(RedeliveryReason::LeaseExpired) => add(&mut self.redelivered_expired),
            Some(RedeliveryReason::Nacked) => add(&mut self.redelivered_nacked),
            Some(RedeliveryReason::MemberLost) => add(&mut self.redelivered_lost),
            Some(RedeliveryReason::ServerRestarted) => add(&mut self.redelivered_restarted),
            None => {}
        }
    }
}

/// A topic's state in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// It and everything below it is settled.
    pub floor: u64,
    /// How many seqs above the floor are settled.
    pub settled_above: u64,
    /// The newest seq that the group knows of.
    pub granted_to: u64,
}

#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) settled: Settled,
    /// Ranges that nobody has had yet, in order.
    pub(super) fresh: VecDeque<(u64, u64)>,
    pub(super) granted_to: u64,
    /// It stands in `Group::active`.
    pub(super) is_active: bool,
    /// Known attempts from before a restart, of seqs that are not granted yet.
    pub(super) restored: BTreeMap<u64, (u32, Millis, Option<RedeliveryReason>)>,
    /// Ranges that could not be read.
    pub(super) unreadable: Vec<Unreadable>,
    /// Nothing is handed out until an unreadable range is retried.
    pub(super) is_blocked: bool,
    pub(super) mark: LeaseMark,
    /// The topic was deleted: nothing is written down about it any more.
    pub(super) is_dropped: bool,
    /// This member has reserved more of it than it will deliver. No other member reserves any of it until the rest is back: later
    /// events would be delivered first.
    pub(super) held_by: Option<MemberId>,
}

impl Source {
    /// Inserts a range into the fresh ranges, in order.
    pub(super) fn add_fresh(&mut self, first_seq: u64, last_seq: u64) {
        let at = self.fresh.partition_point(|other| other.0 < first_seq);
        match self.fresh.get_mut(at) {
            Some(next) if next.0 == last_seq + 1 => next.0 = first_seq,
            _ => self.fresh.insert(at, (first_seq, last_seq)),
        }
    }

    /// Removes a range from the fresh ranges.
    pub(super) fn remove_fresh(&mut self, first_seq: u64, last_seq: u64) {
        let mut left = VecDeque::with_capacity(self.fresh.len() + 1);
        for (first, last) in self.fresh.drain(..) {
            if first < first_seq {
                left.push_back((first, last.min(first_seq - 1)));
            }
            if last > last_seq {
                left.push_back((first.max(last_seq + 1), last));
            }
        }
        self.fresh = left;
    }
}

/// A consumer group.
#[derive(Debug, Default)]
pub struct Group {
    pub(super) sources: Vec<Source>,
    pub(super) members: BTreeMap<MemberId, Member>,
    next_member: u64,
    pub(super) unsettled: UnsettledMap,
    pub(super) leased_count: usize,
    reserved_count: u64,
    /// Unsettled events that are due, in the order they became so. May name some that no longer are.
    pub(super) due: VecDeque<Position>,
    /// Topics with something fresh, in turn.
    pub(super) active: VecDeque<SourceId>,
    pub(super) timers: Timers,
    pub(super) changes: Changes,
    /// Events whose failure is among the changes that were not taken yet.
    pub(super) ungated: Vec<Position>,
    /// Topics whose lease mark is among the changes that were not taken yet.
    pub(super) unmarked: Vec<SourceId>,
    /// A member has begun to wait for a lease mark.
    pub(super) is_mark_awaited: bool,
    /// How far ahead of the leases marks are written down.
    pub(super) mark_ahead: u64,
    /// How many topics a pull reserves from, if more than one has something fresh.
    pub(super) side_by_side: usize,
    /// How much of each it reserved the last time.
    pub(super) share: u64,
    pub(super) given_up: Vec<GiveUp>,
    pub(super) put_off: Vec<(Millis, GiveUp)>,
    pub(super) counters: GroupCounters,
    /// Spreads the backoffs of different groups.
    pub(super) jitter: u64,
    /// When unreadable events are retried next; `Millis::MAX` for never.
    pub(super) retry_reads_at: Millis,
    /// The number of unsettled events that are unreadable.
    pub(super) unreadable_unsettled: usize,
    pub(super) last_errors: LastErrors,
}

impl Group {
    /// A group without topics and members. `jitter` is any number, best another one for each group.
    pub fn new(jitter: u64) -> Self {
        let (mark_ahead, retry_reads_at) = (MARK_AHEAD, Millis::MAX);
        Self { jitter, mark_ahead, retry_reads_at, side_by_side: 1, ..Self::default() }
    }

    /// A pull reserves from up to this many topics, so that its reader can deliver their events in the order of their times.
    #[must_use]
    pub fn with_topics_side_by_side(mut self, topics: usize) -> Self {
        self.side_by_side = topics.max(1);
        self
    }

    /// Writes lease marks down this many seqs ahead of what is leased, at least two.
    #[must_use]
    pub fn with_mark_ahead(mut self, seqs: u64) -> Self {
        self.mark_ahead = seqs.max(2);
        self
    }

    /// Takes the room for the reasons of nacks from a budget that others share.
    #[must_use]
    pub fn with_error_budget(mut self, budget: ErrorBudget) -> Self {
        self.last_errors = LastErrors::new(budget);
        self
    }

    /// What the nack before said about the events of these leases, of those that have it, in order.
    pub fn last_errors(&self, leased: &[Leased]) -> Vec<(Position, Arc<str>)> {
        if self.last_errors.is_empty() {
            return Vec::new();
        }
        let nacked = leased.iter().filter(|lease| lease.reason == Some(RedeliveryReason::Nacked));
        nacked.filter_map(|lease| Some((lease.position, self.last_errors.get(lease.position)?))).collect()
    }

    /// Adds a topic, with what was kept of its progress. Nothing of it is granted yet.
    pub fn add_source(&mut self, restored: Restored) -> SourceId {
        let floor = restored.settled.floor();
        self.sources.push(Source {
            settled: restored.settled,
            granted_to: floor,
            restored: restored.attempts,
            mark: LeaseMark::restored(restored.leased_to, restored.restarted_to),
            ..Source::default()
        });
        SourceId(self.sources.len() as u32 - 1)
    }

    /// How many topics it has.
    pub fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// A topic's state.
    pub fn status(&self, source: SourceId) -> SourceStatus {
        let source = &self.sources[source.0 as usize];
        SourceStatus {
            floor: source.settled.floor(),
            settled_above: source.settled.above_count(),
            granted_to: source.granted_to,
        }
    }

    /// Everything of a topic up to a seq may be leased from now on.
    pub fn grant(&mut self, id: SourceId, to: u64) {
        let source = &mut self.sources[id.0 as usize];
        if to <= source.granted_to {
            return;
        }
        let first = source.granted_to + 1;
        source.granted_to = to;
        let mut known = Vec::new();
        if !source.restored.is_empty() {
            let later = source.restored.split_off(&(to + 1));
            known.extend(std::mem::replace(&mut source.restored, later));
        }
        let fresh = &mut source.fresh;
        let mut push = |first: u64, last: u64| match fresh.back_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => fresh.push_back((first, last)),
        };
        let known_seqs: BTreeSet<u64> = known.iter().map(|&(seq, _)| seq).collect();
        source.settled.unsettled(first, to, |first, last| {
            let mut from = first;
            for &seq in known_seqs.range(first..=last) {
                if seq > from {
                    push(from, seq - 1);
                }
                from = seq + 1;
            }
            if from <= last {
                push(from, last);
            }
        });
        known.retain(|&(seq, _)| !source.settled.contains(seq));
        for (seq, (attempts, not_before, reason)) in known {
            self.restore(Position { source: id, seq }, attempts, not_before, reason);
        }
        self.activate(id);
    }

    /// An event that was tried before a restart waits for its next attempt.
    fn restore(
        &mut self,
        position: Position,
        attempts: u32,
        not_before: Millis,
        reason: Option<RedeliveryReason>,
    ) {
        self.unsettled.insert(
            position,
            Unsettled {
                state: State::Waiting,
                attempts,
                holder: MemberId(0),
                max_attempts: u32::MAX,
                at: not_before,
                leased_at: 0,
                reason,
                is_queued: false,
                is_unreadable: false,
                gate: 0,
                is_started: false,
            },
        );
        self.timers.add(not_before, position);
    }

    pub(super) fn activate(&mut self, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        let is_free = !source.is_blocked() && source.held_by.is_none();
        if !source.is_active && !source.fresh.is_empty() && is_free {
            source.is_active = true;
            self.active.push_back(id);
        }
    }

    /// A member joins.
    pub fn join(&mut self, settings: MemberSettings) -> MemberId {
        self.next_member += 1;
        let id = MemberId(self.next_member);
        self.members.insert(id, Member::new(settings));
        self.prepare_marks();
        id
    }

    /// How many more deliveries a member may have now.
    pub fn window(&self, member: MemberId) -> u32 {
        self.members.get(&member).map_or(0, Member::window)
    }

    /// How many deliveries a member has, and whether it is paused.
    pub fn member_status(&self, member: MemberId) -> Option<(u32, bool)> {
        self.members.get(&member).map(|it| (it.in_flight, it.is_paused))
    }

    /// Whether somebody is a member.
    pub fn has_member(&self, member: MemberId) -> bool {
        self.members.contains_key(&member)
    }

    /// All members.
    pub fn members(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.members.keys().copied()
    }

    /// How many members it has.
    pub fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Takes for a member what it may have now: leases of due redeliveries into `leased`, and ranges of fresh seqs to read into
    /// `reserved`, `want` in all. A member that looks at events before it takes them may reserve up to `scan` fresh seqs
    /// instead. Answers how many of the reserved seqs it may deliver.
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
        leased: &mut Vec<Leased>,
        reserved: &mut Vec<ReservedRange>,
    ) -> u32 {
        self.advance(now);
        let Some(state) = self.members.get_mut(&member) else { return 0 };
        state.is_hungry = true;
        let settings = state.settings;
        let window = state.window().min(want);
        let window = self.lease_due(member, settings, window, now, durable, leased);
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
            leased.is_empty() && reserved.is_empty();
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

    /// A member's reservation of a topic ends: others may reserve from it again.
    pub(super) fn release_topic(&mut self, member: MemberId, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        if source.held_by == Some(member) {
            source.held_by = None;
            self.activate(id);
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
        // Who looks at many events at once must not wait for a mark each time.
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

    /// Leases due redeliveries, and starts the next attempts of those whose start is not written down. Answers how much of the
    /// window is left for fresh events: what waits for a commit keeps its place before them.
    fn lease_due(
        &mut self,
        member: MemberId,
        settings: MemberSettings,
        window: u32,
        now: Millis,
        durable: u64,
        leased: &mut Vec<Leased>,
    ) -> u32 {
        if self.due.is_empty() {
            return window;
        }
        let deadline = now.saturating_add(settings.ack_timeout_ms);
        let mut count = 0;
        // Events that wait for a record to become durable. They keep their places in the queue.
        let mut gated: Vec<Position> = Vec::new();
        let mut room = None;
        while count < window {
            let Some(position) = self.due.pop_front() else { break };
            let Some(unsettled) = self.unsettled.get_mut(&position) else { continue };
            unsettled.is_queued = false;
            if unsettled.state != State::Due {
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
                    // A crash would not count an attempt that is not written down: an event that takes the process
                    // down each time would never be given up.
                    self.changes.attempts(unsettled.start(position));
                    self.ungated.push(position);
                }
                gated.push(position);
                // No more attempts are started than members could take.
                if gated.len() >= *room.get_or_insert_with(|| self.hungry_room()) {
                    break;
                }
                continue;
            }
            if std::mem::replace(&mut unsettled.is_unreadable, false) {
                self.unreadable_unsettled -= 1;
            }
            unsettled.state = State::Leased;
            unsettled.attempts += 1;
            unsettled.is_started = false;
            unsettled.holder = member;
            unsettled.max_attempts = settings.max_attempts;
            unsettled.at = deadline;
            unsettled.leased_at = now;
            let (attempt, reason) = (unsettled.attempts, unsettled.reason);
            self.counters.count_redelivery(reason, 1);
            self.timers.add(deadline, position);
            leased.push(Leased { position, attempt, deadline, reason });
            count += 1;
        }
        let gated_count = gated.len() as u32;
        for position in gated.into_iter().rev() {
            self.due.push_front(position);
        }
        self.leased_count += count as usize;
        self.members.get_mut(&member).expect("looked at by the caller").in_flight += count;
        window.saturating_sub(count).saturating_sub(gated_count)
    }

    /// Ends a reservation: `kept` (in order) are leased to the member, the other seqs up to `scanned_to` are passed over, what
    /// lies behind stays fresh. False when the reservation is void by now, because of a seek or because the member is gone:
    /// then nothing is leased.
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
        // From the end: a pull of many topics ends its reservations in that order.
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
            self.unsettled.insert(
                position,
                Unsettled {
                    state: State::Leased,
                    attempts: 1,
                    holder: member,
                    max_attempts: settings.max_attempts,
                    at: deadline,
                    leased_at: now,
                    reason,
                    is_queued: false,
                    is_unreadable: false,
                    gate: 0,
                    is_started: false,
                },
            );
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

    /// Puts the rest of a reservation back where it came from.
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

    /// Settles seqs that nobody gets: a filter dropped them, or they are gone.
    fn pass_over(&mut self, source: SourceId, first: u64, last: u64) {
        self.sources[source.0 as usize].settled.insert(first, last);
        self.changes.settle(source, first, last);
        self.counters.passed_over += last - first + 1;
    }

    /// A lease that turned out to name an event which is gone, or which a filter drops: it is settled, if the member still has
    /// it.
    pub fn pass_over_leased(&mut self, member: MemberId, position: Position) {
        if self.is_leased_to(member, position) && self.forget(position).is_some() {
            self.pass_over(position.source, position.seq, position.seq);
        }
    }

    /// Takes an event out of what is unsettled, and off its member's account.
    pub(super) fn forget(&mut self, position: Position) -> Option<Unsettled> {
        let unsettled = self.remove_unsettled(position)?;
        if unsettled.state == State::Leased {
            self.release(unsettled.holder);
        }
        Some(unsettled)
    }

    pub(super) fn remove_unsettled(&mut self, position: Position) -> Option<Unsettled> {
        let unsettled = self.unsettled.remove(&position)?;
        self.unreadable_unsettled -= usize::from(unsettled.is_unreadable);
        self.last_errors.remove(position);
        Some(unsettled)
    }

    /// A lease of this member ended.
    pub(super) fn release(&mut self, holder: MemberId) {
        self.leased_count -= 1;
        if let Some(member) = self.members.get_mut(&holder) {
            member.in_flight -= 1;
        }
    }

    /// Goes to another place in a topic: everything up to `floor` is settled, nothing above it; all leases and reservations of
    /// the topic are void. What is to be written down about that is the caller's.
    pub fn seek(&mut self, id: SourceId, floor: u64) {
        let mut void: Vec<Position> =
            self.unsettled.keys().filter(|position| position.source == id).copied().collect();
        void.sort_unstable();
        for position in void {
            self.forget(position);
        }
        let mut reserved_count = 0;
        for member in self.members.values_mut() {
            member.reserved.retain(|range| range.source != id);
            reserved_count += member.reserved.iter().map(ReservedRange::count).sum::<u64>();
        }
        self.reserved_count = reserved_count;
        self.changes.forget(id);
        self.ungated.retain(|position| position.source != id);
        self.due.retain(|position| position.source != id);
        self.given_up.retain(|give_up| give_up.position.source != id);
        self.put_off.retain(|(_, give_up)| give_up.position.source != id);
        let source = &mut self.sources[id.0 as usize];
        source.settled = Settled::up_to(floor);
        source.restored.clear();
        source.unreadable.clear();
        source.is_blocked = false;
        source.held_by = None;
        source.fresh.clear();
        source.granted_to = source.granted_to.max(floor);
        if floor < source.granted_to {
            source.fresh.push_back((floor + 1, source.granted_to));
        }
        self.active.retain(|&other| other != id);
        self.sources[id.0 as usize].is_active = false;
        self.reset_mark(id, floor);
        self.activate(id);
    }

    /// The topic of a source was deleted: nothing of it is delivered any more, and leases of it are void.
    pub fn drop_source(&mut self, id: SourceId) {
        self.seek(id, self.sources[id.0 as usize].granted_to);
        self.sources[id.0 as usize].is_dropped = true;
    }

    /// Whether a member with room could be given something now.
    pub fn has_work(&self) -> bool {
        !self.active.is_empty() || !self.due.is_empty()
    }

    /// How many events are unsettled.
    pub fn counts(&self) -> UnsettledCounts {
        UnsettledCounts { leased: self.leased_count, waiting: self.unsettled.len() - self.leased_count }
    }

    /// All unsettled deliveries, in no order.
    pub fn unsettled(&self) -> impl Iterator<Item = (Position, &Unsettled)> {
        self.unsettled.iter().map(|(&position, unsettled)| (position, unsettled))
    }

    /// The state of what is settled in a topic.
    pub fn settled(&self, source: SourceId) -> &Settled {
        &self.sources[source.0 as usize].settled
    }

    /// What happened so far.
    pub fn counters(&self) -> GroupCounters {
        self.counters
    }

    /// Takes what must be written down. The events whose failures are in it are given to nobody before that is durable:
    /// [`gate`](Self::gate) says as which generation it goes.
    pub fn changes_mut(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// The changes that were just taken are of this generation. Answers whether events wait for it to be durable.
    pub fn gate(&mut self, generation: u64) -> bool {
        self.gate_marks(generation);
        let has_failures = !self.ungated.is_empty();
        for position in self.ungated.drain(..) {
            if let Some(unsettled) = self.unsettled.get_mut(&position) {
                unsettled.gate = generation;
            }
        }
        has_failures
    }
}

/// How many deliveries of a group are unsettled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsettledCounts {
    /// With a member.
    pub leased: usize,
    /// Waiting to be delivered again, or on the way to the dead letters.
    pub waiting: usize,
}
