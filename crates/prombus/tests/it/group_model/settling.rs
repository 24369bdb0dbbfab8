//! Settling in the model: acks, nacks, extensions, members that leave or are lost, seeks, dead letters.

use super::image::Kept;
use super::model::{Model, NOT_WRITTEN, Place};
use prombus::delivery::*;
use prombus_protocol::RedeliveryReason;

const EXTENSION_MIN_MS: Millis = 1_000;
const GRACE_MS: Millis = 1_000;
const BACKOFF_FIRST_MS: Millis = 100;
const BACKOFF_MAX_MS: Millis = 30_000;

/// The arguments of a nack.
#[derive(Clone, Copy, Debug)]
pub struct Nack<'a> {
    pub delay: Option<Millis>,
    pub error: Option<&'a str>,
    pub now: Millis,
    /// The end of the wait that the machine chose; used if the nack has no delay.
    pub chosen_until: Option<Millis>,
}

/// Whether a backoff follows the rule: 100 ms, doubling up to 30 s, with a jitter of 20 %.
pub fn is_backoff(failed_attempts: u32, backoff: Millis) -> bool {
    let mut full = BACKOFF_FIRST_MS;
    for _ in 1..failed_attempts {
        full = (full * 2).min(BACKOFF_MAX_MS);
    }
    (full * 4 / 5..=full * 6 / 5).contains(&backoff)
}

impl Model {
    /// Whether the sender holds the event, or held it last and no newer member does.
    fn is_theirs(&self, sender: Sender, position: Position) -> bool {
        let Some(event) = self.events.get(&position) else { return false };
        let is_theirs = match sender {
            Sender::Member(member) => event.last_holder == Some(member),
            Sender::LastHolder => event.last_holder.is_some(),
        };
        is_theirs && event.place != Place::GivingUp
    }

    pub fn ack(&mut self, sender: Sender, position: Position) -> AckOutcome {
        if !self.is_theirs(sender, position) {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        }
        self.settle(position);
        self.counters.acked += 1;
        AckOutcome::Counted
    }

    pub fn nack(&mut self, sender: Sender, position: Position, nack: Nack<'_>) -> AckOutcome {
        if !self.is_theirs(sender, position) {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        }
        self.counters.nacked += 1;
        let event = self.event(position);
        let until = nack.delay.map(|delay| nack.now + delay).or(nack.chosen_until).unwrap_or(nack.now);
        let is_running = matches!(event.place, Place::Leased { .. });
        let is_last = is_running && event.attempts >= event.limit;
        assert!(
            nack.delay.is_some() || is_last || is_backoff(event.attempts, until - nack.now),
            "a backoff of {} ms after {} attempts",
            until - nack.now,
            event.attempts
        );
        event.has_two_turns |= matches!(event.place, Place::Due { .. });
        if is_running {
            self.fail(position, RedeliveryReason::Nacked, until, nack.error.unwrap_or("nacked"));
        } else {
            // The attempt has failed already: only the wait changes.
            self.wait(position, RedeliveryReason::Nacked, until);
        }
        if nack.delay == Some(0) {
            self.advance(nack.now);
        }
        AckOutcome::Counted
    }

    pub fn nack_dead(&mut self, sender: Sender, position: Position, error: Option<&str>) -> AckOutcome {
        if !self.is_theirs(sender, position) {
            self.counters.stale += 1;
            return AckOutcome::Stale;
        }
        self.counters.nacked += 1;
        let limit = self.event(position).limit;
        self.give_up(position, error.unwrap_or("nacked"));
        if let Some(named) = self.named.iter_mut().find(|named| named.position == position) {
            named.spent = named.attempts.max(limit);
        }
        AckOutcome::Counted
    }

    pub fn extend(
        &mut self,
        sender: Sender,
        position: Position,
        extend_ms: Millis,
        now: Millis,
    ) -> Option<Millis> {
        if !self.is_theirs(sender, position) {
            return None;
        }
        let Place::Leased { until } = &mut self.event(position).place else { return None };
        *until = now + extend_ms.max(EXTENSION_MIN_MS);
        Some(*until)
    }

    /// Settles a redelivery, if the member has reserved it.
    pub fn pass_over_redelivery(&mut self, member: MemberId, position: Position) -> bool {
        let is_theirs = self.reserved_by(member).contains(&position);
        if is_theirs {
            self.settle(position);
            self.counters.passed_over += 1;
        }
        is_theirs
    }

    /// The leases and reserved redeliveries of a member, in order.
    fn all_of(&self, member: MemberId) -> Vec<Position> {
        let mut all = self.leased_to(member);
        all.extend(self.reserved_by(member));
        all.sort_unstable();
        all
    }

    /// Removes a member that leaves cleanly: its leases end as if they had not happened.
    pub fn leave(&mut self, member: MemberId) {
        for position in self.all_of(member) {
            self.give_back_lease(member, position);
        }
        self.members.remove(&member);
    }

    /// Ends a lease, or the reservation of a redelivery, as if it had not happened.
    pub fn give_back_lease(&mut self, member: MemberId, position: Position) {
        if !self.all_of(member).contains(&position) {
            return;
        }
        let turn = self.next_turn();
        let event = self.event(position);
        event.attempts -= u32::from(matches!(event.place, Place::Leased { .. }));
        event.place = Place::Due { turn };
        event.is_started = false;
        if event.attempts > 0 {
            event.kept = Some(Kept { attempts: event.attempts, not_before: 0, reason: event.reason });
        }
    }

    /// Puts back a reserved redelivery; the start of its attempt stays recorded. Returns whether the member had reserved it.
    pub fn put_back_redelivery(&mut self, member: MemberId, position: Position) -> bool {
        let is_theirs = self.reserved_by(member).contains(&position);
        if is_theirs {
            let turn = self.next_turn();
            self.event(position).place = Place::Due { turn };
        }
        is_theirs
    }

    /// All members leave, and the records become exact.
    pub fn close(&mut self) {
        for member in self.members.keys().copied().collect::<Vec<_>>() {
            self.leave(member);
        }
        for event in self.events.values_mut() {
            let not_before = match event.place {
                Place::Waiting { until } => until,
                Place::Due { .. } => 0,
                Place::Leased { .. } | Place::Reserved { .. } | Place::GivingUp => continue,
            };
            if std::mem::replace(&mut event.is_started, false) {
                event.kept = Some(Kept { attempts: event.attempts, not_before, reason: event.reason });
            }
        }
    }

    /// Removes a member that is lost: its attempts have failed, and the events are due at once.
    pub fn lose(&mut self, member: MemberId, now: Millis) {
        let theirs = self.all_of(member);
        self.members.remove(&member);
        for position in theirs {
            if self.put_back_redelivery(member, position) {
                continue;
            }
            self.counters.lost += 1;
            self.fail(position, RedeliveryReason::MemberLost, now, "member_lost");
        }
        self.advance(now);
    }

    pub fn pause(&mut self, member: MemberId, is_paused: bool) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_paused = is_paused;
        }
    }

    pub fn hold(&mut self, member: MemberId) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_held = true;
        }
    }

    /// Leases that expired during the hold are extended a little.
    pub fn unhold(&mut self, id: MemberId, now: Millis) {
        self.advance(now);
        let Some(member) = self.members.get_mut(&id) else { return };
        member.is_held = false;
        for position in self.leased_to(id) {
            match &mut self.event(position).place {
                Place::Leased { until } if *until <= now => *until = now + GRACE_MS,
                _ => {}
            }
        }
    }

    /// Removes the events below a seq: they are settled, except those that are leased, reserved or being given up.
    pub fn cut(&mut self, source: SourceId, first_seq: u64) -> Vec<Position> {
        let mut missed = Vec::new();
        for seq in 1..first_seq {
            let position = Position { source, seq };
            let is_reserved = self
                .reserved()
                .any(|range| range.source == source && (range.first_seq..=range.last_seq).contains(&seq));
            let place = self.events.get(&position).map(|event| event.place);
            let is_busy =
                matches!(place, Some(Place::Leased { .. } | Place::Reserved { .. } | Place::GivingUp));
            let is_busy = is_busy || is_reserved;
            if !is_busy && !self.topic(source).settled.contains(&seq) {
                self.settle(position);
                missed.push(position);
            }
        }
        let topic = self.topic(source);
        topic.granted_to = topic.granted_to.max(first_seq.saturating_sub(1));
        topic.restored.retain(|&seq, _| seq >= first_seq);
        self.counters.missed += missed.len() as u64;
        missed
    }

    pub fn seek(&mut self, source: SourceId, floor: u64) {
        self.events.retain(|position, _| position.source != source);
        for member in self.members.values_mut() {
            member.reserved.retain(|range| range.source != source);
            member.held.remove(&source);
        }
        self.named.retain(|give_up| give_up.position.source != source);
        self.put_off.retain(|(_, give_up)| give_up.position.source != source);
        let topic = self.topic(source);
        topic.settled = (1..=floor).collect();
        topic.restored.clear();
        topic.durable_mark = floor;
        topic.written_marks.clear();
        topic.restarted_to = 0;
        topic.leased_to = floor;
        // It goes to the end of the rotation of topics.
        topic.passed_by = 0;
        topic.granted_to = topic.granted_to.max(floor);
    }

    /// Assigns a generation to the changes so far. Returns whether an event waits for it.
    pub fn gate(&mut self, generation: u64) -> bool {
        let mut is_waited_for = false;
        for event in self.events.values_mut().filter(|event| event.gate == NOT_WRITTEN) {
            event.gate = generation;
            is_waited_for = true;
        }
        is_waited_for
    }

    pub fn is_giving_up(&self, position: Position) -> bool {
        self.events.get(&position).is_some_and(|event| event.place == Place::GivingUp)
    }

    /// Events to give up, sorted by position.
    pub fn take_given_up(&mut self) -> Vec<GiveUp> {
        self.named.sort_by_key(|give_up| give_up.position);
        std::mem::take(&mut self.named)
    }

    pub fn gave_up(&mut self, position: Position) {
        if self.is_giving_up(position) {
            self.settle(position);
            self.counters.dead_lettered += 1;
        }
    }

    pub fn put_off(&mut self, give_up: GiveUp, until: Millis) {
        if !self.is_giving_up(give_up.position) {
            return;
        }
        let mut give_up = give_up;
        if !give_up.is_recorded {
            give_up.is_recorded = true;
            let event = self.event(give_up.position);
            let reason = Some(RedeliveryReason::MemberLost);
            event.kept = Some(Kept { attempts: give_up.spent, not_before: 0, reason });
        }
        self.put_off.push((until, give_up));
    }
}
