//! Pulls in the model: reserving, leasing and returning events.

use super::model::{Answer, Event, Model, Place, Pull};
use prombus::delivery::*;
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet};

impl Model {
    /// How many events the waiting members could take.
    pub fn idle_room(&self) -> u32 {
        let idle = self.members.iter().filter(|(_, member)| member.is_idle);
        idle.map(|(&id, _)| self.window(id)).sum()
    }

    /// Checks the result of a pull, and adopts it. The machine chooses which events are given up, and whose next attempt is
    /// started.
    pub fn reserve(
        &mut self,
        pull: &Pull,
        answer: &Answer,
        is_giving_up: impl Fn(Position) -> bool,
        is_started: impl Fn(Position) -> bool,
    ) {
        self.advance(pull.now);
        for topic in &mut self.topics {
            let durable =
                topic.written_marks.iter().rev().find(|(_, generation)| *generation <= pull.durable);
            topic.durable_mark = durable.map_or(topic.durable_mark, |&(mark, _)| mark);
            topic.written_marks.retain(|(_, generation)| *generation > pull.durable);
        }
        let Some(member) = self.members.get_mut(&pull.member) else {
            assert!(
                answer.redelivered.is_empty() && answer.reserved.is_empty(),
                "an unknown member got events"
            );
            return;
        };
        member.is_idle = true;
        let settings = member.settings;
        let window = self.window(pull.member).min(pull.want);
        let mut left = 0;
        if window > 0 {
            left = self.reserve_due(pull, settings, window, &answer.redelivered, (is_giving_up, is_started));
        } else {
            self.take_over_starts(is_started);
            assert!(answer.redelivered.is_empty(), "the window was empty");
        }
        let reserved: u64 = self.reserved().map(ReservedRange::count).sum();
        let room = u64::from(settings.max_unsettled).saturating_sub(self.events.len() as u64 + reserved);
        let allowed = room.min(u64::from(left)) as u32;
        assert_eq!(answer.allowed, allowed, "how many events may be delivered");
        let most = if allowed == 0 { 0 } else { u64::from(pull.scan.unwrap_or(allowed)) };
        self.take_fresh(pull.member, most, pull.scan.is_some(), &answer.reserved);
        let member = self.members.get_mut(&pull.member).expect("found above");
        member.is_idle = answer.redelivered.is_empty() && answer.reserved.is_empty();
    }

    /// Reserves redeliveries, as many as fit, in the order in which they became due. From the second attempt on, an event is
    /// reserved only once the start of its attempt is durable. The machine may stop when as many events wait for that as all
    /// members could take. Returns how much of the window is left for fresh events: gated redeliveries keep their share.
    fn reserve_due(
        &mut self,
        pull: &Pull,
        settings: MemberSettings,
        window: u32,
        redelivered: &[Position],
        (is_giving_up, is_started): (impl Fn(Position) -> bool, impl Fn(Position) -> bool),
    ) -> u32 {
        let room = self.idle_room();
        let mut ready = BTreeMap::new();
        let mut spent = Vec::new();
        let (mut gated, mut started, mut unstarted) = (0, 0, 0);
        for (&position, event) in &mut self.events {
            let Place::Due { turn } = event.place else { continue };
            let is_spent = event.attempts >= settings.max_attempts;
            let is_unstarted = event.attempts > 0 && !event.is_started;
            if is_unstarted && is_started(position) {
                event.is_out_of_turn = true;
                event.start();
                started += 1;
            } else if event.gate <= pull.durable && is_spent {
                spent.push(position);
            } else if event.gate > pull.durable || is_unstarted {
                event.is_out_of_turn = true;
                gated += u32::from(event.gate > pull.durable);
                unstarted += u32::from(is_unstarted && !is_spent);
            } else {
                ready.insert(position, (!event.is_out_of_turn && !event.has_two_turns).then_some(turn));
            }
        }
        assert!(started <= room, "{started} attempts are started, but members can take only {room}");
        let may_stop = gated + started >= room;
        let expected = ready.len().min(window as usize);
        assert!(
            redelivered.len() == expected || (may_stop && redelivered.len() < expected),
            "{} due redeliveries, of {ready:?}",
            redelivered.len()
        );
        let is_full = redelivered.len() == window as usize;
        assert!(unstarted == 0 || may_stop || is_full, "{unstarted} attempts are not started");
        for position in spent {
            let must_be = !is_full && !may_stop;
            assert!(!must_be || is_giving_up(position), "{position:?} has used up its attempts");
            if is_giving_up(position) {
                let error = self.event(position).reason.map_or("member_lost", RedeliveryReason::as_str);
                self.give_up(position, error);
            }
        }
        let mut newest_turn = None;
        for &position in redelivered {
            let turn =
                ready.remove(&position).expect("a reserved redelivery is due, durable, and reserved once");
            if turn.is_some() {
                assert!(turn >= newest_turn, "{position:?} is out of turn");
                newest_turn = turn;
            }
            let event = self.event(position);
            event.is_out_of_turn = false;
            event.place = Place::Reserved { by: pull.member };
        }
        let left = ready.values().flatten().min();
        assert!(
            left.is_none_or(|turn| Some(*turn) >= newest_turn),
            "an event that became due earlier was left out"
        );
        window.saturating_sub(redelivered.len() as u32 + gated + started)
    }

    /// Leases a redelivery that its member has read; `None` if the member has not reserved it any more.
    pub fn hand_out(&mut self, member: MemberId, position: Position, now: Millis) -> Option<Leased> {
        let settings = self.members.get(&member)?.settings;
        let event = self.events.get_mut(&position)?;
        if event.place != (Place::Reserved { by: member }) {
            return None;
        }
        event.attempts += 1;
        event.last_holder = Some(member);
        event.limit = settings.max_attempts;
        event.is_started = false;
        let deadline = now + settings.ack_timeout_ms;
        event.place = Place::Leased { until: deadline };
        let (attempt, reason) = (event.attempts, event.reason);
        assert!(
            attempt == 1 || event.kept.is_some_and(|kept| kept.attempts == attempt),
            "{position:?} is delivered before its attempt is recorded"
        );
        let counters = &mut self.counters;
        counters.delivered += 1;
        match reason {
            Some(RedeliveryReason::LeaseExpired) => counters.redelivered_expired += 1,
            Some(RedeliveryReason::Nacked) => counters.redelivered_nacked += 1,
            Some(RedeliveryReason::MemberLost) => counters.redelivered_lost += 1,
            Some(RedeliveryReason::ServerRestarted) => counters.redelivered_restarted += 1,
            None => {}
        }
        Some(Leased { position, attempt, deadline, reason })
    }

    /// Reserves fresh seqs, as many as fit, the lowest of each topic first, topics in rotation.
    fn take_fresh(&mut self, member: MemberId, most: u64, is_scan: bool, ranges: &[ReservedRange]) {
        let free = self.sources().filter(|&source| !self.is_held(source) && !self.fresh(source).is_empty());
        let free_count = free.count();
        let fresh = self.sources().map(|source| {
            let mut fresh = self.fresh(source);
            let mark = self.topics[source.0 as usize].durable_mark;
            fresh.retain(|&seq| seq <= mark && !self.is_held(source));
            fresh
        });
        let fresh: Vec<BTreeSet<u64>> = fresh.collect();
        let all: usize = fresh.iter().map(BTreeSet::len).sum();
        let count: u64 = ranges.iter().map(ReservedRange::count).sum();
        let is_merged = most > 0 && free_count.min(self.side_by_side) > 1;
        if is_merged {
            let topics = free_count.min(self.side_by_side);
            let share = if is_scan { (most / topics as u64).max(32) } else { most };
            assert!(ranges.iter().all(|range| range.count() <= share), "more than a share of a topic");
            let mut sources: Vec<SourceId> = ranges.iter().map(|range| range.source).collect();
            sources.sort_unstable();
            sources.dedup();
            assert_eq!(sources.len(), ranges.len(), "two ranges of one topic");
            let readable = fresh.iter().filter(|fresh| !fresh.is_empty()).count();
            let skipped = free_count - readable;
            assert!(
                (topics.saturating_sub(skipped)..=topics.min(readable)).contains(&ranges.len()),
                "how many topics are read side by side"
            );
        } else {
            assert_eq!(count, most.min(all as u64), "how many fresh seqs are reserved");
        }
        let topic_count = self.topics.len();
        for (source, fresh) in self.sources().zip(fresh) {
            let of_topic = ranges.iter().filter(|range| range.source == source);
            let taken: Vec<u64> = of_topic.flat_map(|range| range.first_seq..=range.last_seq).collect();
            assert!(
                taken.iter().eq(fresh.iter().take(taken.len())),
                "not the first fresh ones of {source:?}: {taken:?}"
            );
            let topic = self.topic(source);
            topic.passed_by =
                if count > 0 && taken.is_empty() && !fresh.is_empty() { topic.passed_by + 1 } else { 0 };
            assert!(topic.passed_by < topic_count, "{source:?} does not get its turn");
        }
        let member = self.members.get_mut(&member).expect("found by the caller");
        member.reserved.extend_from_slice(ranges);
        if is_merged {
            member.held.extend(ranges.iter().map(|range| range.source));
        }
    }

    /// Whether a member may have reserved more of a topic than it will deliver, so that no other member reserves from it.
    pub fn is_held(&self, source: SourceId) -> bool {
        self.members.values().any(|member| member.held.contains(&source))
    }

    /// Leases the events that a member has read; `None` if its reservation is void.
    pub fn deliver(
        &mut self,
        id: MemberId,
        range: ReservedRange,
        scanned_to: u64,
        kept: &[u64],
        now: Millis,
    ) -> Option<Vec<Leased>> {
        let settings = self.members.get(&id)?.settings;
        if !self.unreserve(id, range) {
            return None;
        }
        let mut leased = Vec::new();
        for seq in range.first_seq..=scanned_to {
            let position = Position { source: range.source, seq };
            if !kept.contains(&seq) {
                self.settle(position);
                self.counters.passed_over += 1;
                continue;
            }
            let deadline = now + settings.ack_timeout_ms;
            let topic = self.topic(range.source);
            topic.leased_to = topic.leased_to.max(seq);
            let reason = (seq <= topic.restarted_to).then_some(RedeliveryReason::ServerRestarted);
            self.counters.redelivered_restarted += u64::from(reason.is_some());
            let event = Event {
                place: Place::Leased { until: deadline },
                attempts: 1,
                last_holder: Some(id),
                limit: settings.max_attempts,
                reason,
                gate: 0,
                kept: None,
                is_restored: false,
                is_started: false,
                is_out_of_turn: false,
                has_two_turns: false,
            };
            self.events.insert(position, event);
            leased.push(Leased { position, attempt: 1, deadline, reason });
        }
        self.counters.delivered += leased.len() as u64;
        Some(leased)
    }

    /// Ends a reservation. Returns false if it was void.
    pub fn unreserve(&mut self, member: MemberId, range: ReservedRange) -> bool {
        let Some(member) = self.members.get_mut(&member) else { return false };
        let count = member.reserved.len();
        member.reserved.retain(|&other| other != range);
        let is_there = member.reserved.len() < count;
        if is_there {
            member.held.remove(&range.source);
        }
        is_there
    }
}
