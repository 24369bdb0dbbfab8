//! What becomes of a delivery: acked, nacked, extended, timed out, or left behind by its member.
//!
//! An ack or nack counts if its sender holds the lease, or held it last and nobody newer does. Every failure, and the start of
//! every attempt from the second on, is durable before the event is delivered again. So attempts never fall, whatever happens
//! to the machine in between, and an event that takes the process down each time is given up in the end.

use super::change::AttemptsChange;
use super::group::Group;
use super::lease::{State, Unsettled};
use super::member::{MemberId, ReservedRange};
use super::{Millis, Position};
use prombus_protocol::RedeliveryReason;

const BACKOFF_FIRST_MS: u64 = 100;
const BACKOFF_MAX_MS: u64 = 30_000;
/// The least that an extension gives.
const EXTENSION_MIN_MS: Millis = 1_000;
/// What a member that the server did not read from gets, to have its waiting acks read.
const GRACE_MS: Millis = 1_000;

/// Who settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A member of the group.
    Member(MemberId),
    /// Somebody who speaks for whoever had the event last.
    LastHolder,
}

/// Whether an ack or a nack counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settling {
    /// It did.
    Counted,
    /// Somebody newer has the event, or nobody has it: nothing changed.
    Stale,
}

/// How long a nacked event waits before its next attempt: 100 ms doubling to 30 s, a fifth more or less.
pub fn backoff_ms(failed_attempts: u32, jitter: u64) -> Millis {
    let doublings = failed_attempts.saturating_sub(1).min(16);
    let full = (BACKOFF_FIRST_MS << doublings).min(BACKOFF_MAX_MS);
    let mixed = (jitter ^ u64::from(failed_attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    full * 4 / 5 + mixed % (full * 2 / 5 + 1)
}

impl Group {
    fn is_from(&self, sender: Sender, position: Position) -> Option<State> {
        let unsettled = self.unsettled.get(&position)?;
        let is_theirs = match sender {
            Sender::Member(member) => member == unsettled.holder,
            // Known from before a restart, and delivered to nobody since.
            Sender::LastHolder => unsettled.holder != MemberId(0),
        };
        (is_theirs && unsettled.state != State::GivingUp).then_some(unsettled.state)
    }

    /// Counts an ack or nack that names an event which its sender does not have.
    pub fn count_stale(&mut self) {
        self.counters.stale += 1;
    }

    /// The event is done.
    pub fn ack(&mut self, sender: Sender, position: Position) -> Settling {
        if self.is_from(sender, position).is_none() {
            self.counters.stale += 1;
            return Settling::Stale;
        }
        self.forget(position);
        self.sources[position.source.0 as usize].settled.insert(position.seq, position.seq);
        self.changes.settle(position.source, position.seq, position.seq);
        self.changes.is_wanted = true;
        self.counters.acked += 1;
        Settling::Counted
    }

    /// The event failed; it is delivered again after a backoff, or after `delay`.
    pub fn nack(
        &mut self,
        sender: Sender,
        position: Position,
        delay: Option<Millis>,
        error: Option<&str>,
        now: Millis,
    ) -> Settling {
        let Some(state) = self.is_from(sender, position) else {
            self.counters.stale += 1;
            return Settling::Stale;
        };
        self.counters.nacked += 1;
        self.last_errors.put(position, error);
        let attempts = self.unsettled[&position].attempts;
        let delay = delay
            .unwrap_or_else(|| backoff_ms(attempts, self.jitter ^ position.seq.wrapping_mul(0x2545_f491)));
        if state == State::Leased {
            self.fail(
                position,
                RedeliveryReason::Nacked,
                now.saturating_add(delay),
                error.unwrap_or("nacked"),
            );
        } else {
            // Its lease had run out: that attempt has failed already.
            self.wait(position, RedeliveryReason::Nacked, now.saturating_add(delay));
            self.sweep_timers();
        }
        if delay == 0 {
            // Due now: if a member waits for it, the start of its next attempt goes into the same record.
            self.advance(now);
        }
        Settling::Counted
    }

    /// The event failed for good: it is given up now.
    pub fn nack_dead(&mut self, sender: Sender, position: Position, error: Option<&str>) -> Settling {
        let Some(state) = self.is_from(sender, position) else {
            self.counters.stale += 1;
            return Settling::Stale;
        };
        self.counters.nacked += 1;
        let unsettled = &self.unsettled[&position];
        // If its letter has to wait, a restart must not give it to anybody: as if all its attempts were used up.
        let (holder, spent) = (unsettled.holder, unsettled.attempts.max(unsettled.max_attempts));
        if state == State::Leased {
            self.release(holder);
        }
        self.give_up_spending(position, spent, error.unwrap_or("nacked").to_owned());
        Settling::Counted
    }

    /// Gives a running lease more time, counted from now. Answers when it ends, or `None` when the sender has no such lease.
    pub fn extend(
        &mut self,
        sender: Sender,
        position: Position,
        extend_ms: Millis,
        now: Millis,
    ) -> Option<Millis> {
        self.is_from(sender, position).filter(|&state| state == State::Leased)?;
        let unsettled = self.unsettled.get_mut(&position)?;
        let deadline = now.saturating_add(extend_ms.max(EXTENSION_MIN_MS));
        // A later end is found out when the old timer fires, unless it has fired while the member was held.
        if deadline < unsettled.at || unsettled.at <= now {
            self.timers.add(deadline, position);
        }
        unsettled.at = deadline;
        self.sweep_timers();
        Some(deadline)
    }

    /// Ends a lease whose attempt failed.
    fn fail(&mut self, position: Position, reason: RedeliveryReason, at: Millis, error: &str) {
        let Some(unsettled) = self.unsettled.get(&position) else { return };
        debug_assert_eq!(unsettled.state, State::Leased);
        let is_last = unsettled.attempts >= unsettled.max_attempts;
        self.release(unsettled.holder);
        if is_last {
            self.give_up(position, error.to_owned());
        } else {
            self.wait(position, reason, at);
        }
    }

    /// To be delivered again from a time on, once its attempts are written down.
    fn wait(&mut self, position: Position, reason: RedeliveryReason, at: Millis) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        unsettled.state = State::Waiting;
        unsettled.reason = Some(reason);
        unsettled.at = at;
        unsettled.is_started = false;
        // Nobody gets it before the caller has said which generation carries this.
        unsettled.gate = u64::MAX;
        let attempts = unsettled.attempts;
        self.timers.add(at, position);
        self.ungated.push(position);
        self.changes.attempts(AttemptsChange { position, attempts, not_before: at, reason: Some(reason) });
    }

    /// It is that late.
    pub fn advance(&mut self, now: Millis) {
        let mut room = None;
        while let Some(timer) = self.timers.pop_due(now) {
            let room = *room.get_or_insert_with(|| self.hungry_room());
            for seq in timer.first_seq..=timer.last_seq {
                self.look_at(Position { source: timer.source, seq }, timer.at, room);
            }
        }
        if !self.put_off.is_empty() {
            self.fire_put_off(now);
        }
        if self.retry_reads_at <= now {
            self.retry_reads(now);
        }
    }

    /// How many events the members that wait for some could take now.
    pub(super) fn hungry_room(&self) -> usize {
        let hungry = self.members.values().filter(|member| member.is_hungry);
        hungry.map(|member| member.window() as usize).sum()
    }

    /// `room` is how many redeliveries would be taken at once.
    fn look_at(&mut self, position: Position, at: Millis, room: usize) {
        let Some(unsettled) = self.unsettled.get_mut(&position) else { return };
        if unsettled.at > at {
            // Extended, or leased again, since this timer was set. The latter has a timer of its own; two do no harm.
            if unsettled.state == State::Leased {
                let later = unsettled.at;
                self.timers.add(later, position);
            }
            return;
        }
        match unsettled.state {
            State::Waiting => {
                unsettled.state = State::Due;
                // Nacked while it was due before, it may stand there still.
                if !std::mem::replace(&mut unsettled.is_queued, true) {
                    self.due.push_back(position);
                }
                if self.due.len() <= room && unsettled.needs_start() {
                    self.changes.attempts(unsettled.start(position));
                    self.ungated.push(position);
                }
            }
            State::Leased => {
                let holder = unsettled.holder;
                if let Some(member) = self.members.get_mut(&holder).filter(|member| member.is_held) {
                    member.overdue.push(position);
                    return;
                }
                self.counters.expired += 1;
                self.fail(position, RedeliveryReason::LeaseExpired, at, "lease_expired");
            }
            State::Due | State::GivingUp => {}
        }
    }

    /// When to call [`advance`](Self::advance) again.
    pub fn wake_at(&self) -> Option<Millis> {
        let put_off = self.put_off.iter().map(|&(at, _)| at).min();
        let retry_reads = (self.retry_reads_at < Millis::MAX).then_some(self.retry_reads_at);
        self.timers.next_at().into_iter().chain(put_off).chain(retry_reads).min()
    }

    /// How many timers it has; leases of one pull share one.
    pub fn timer_count(&self) -> usize {
        self.timers.count()
    }

    pub(super) fn sweep_timers(&mut self) {
        if self.timers.needs_sweep(self.unsettled.len()) {
            let timed =
                self.unsettled.iter().filter(|(_, it)| matches!(it.state, State::Leased | State::Waiting));
            self.timers.rebuild(timed.map(|(&position, unsettled)| (unsettled.at, position)));
        }
    }

    /// A member is gone without a word: its deliveries failed and go to others at once.
    pub fn lose(&mut self, member: MemberId, now: Millis) {
        for position in self.remove_member(member) {
            self.counters.lost += 1;
            self.fail(position, RedeliveryReason::MemberLost, now, "member_lost");
        }
        self.advance(now);
    }

    /// A member leaves in order: its deliveries go to others at once, as if they had not happened.
    pub fn leave(&mut self, member: MemberId, now: Millis) {
        for position in self.remove_member(member) {
            self.give_back_lease(member, position, now);
        }
    }

    /// Takes a lease back as if it had not happened.
    pub fn give_back_lease(&mut self, member: MemberId, position: Position, now: Millis) {
        if let Some(unsettled) = self.unlease(member, position, now) {
            // The record of its start is taken back with this one, and written again when it is leased again.
            unsettled.is_started = false;
            let (attempts, reason) = (unsettled.attempts, unsettled.reason);
            if attempts > 0 {
                self.changes.attempts(AttemptsChange { position, attempts, not_before: 0, reason });
            }
        }
    }

    /// Takes back a lease whose event the member has not got: it did not fit, or could not be read. Nothing is written down:
    /// the record of the attempt's start serves the next lease.
    pub fn take_back_lease(&mut self, member: MemberId, position: Position, now: Millis) {
        self.unlease(member, position, now);
    }

    /// Ends a lease and its attempt; the event is due at once.
    fn unlease(&mut self, member: MemberId, position: Position, now: Millis) -> Option<&mut Unsettled> {
        if !self.is_leased_to(member, position) {
            return None;
        }
        self.release(member);
        let unsettled = self.unsettled.get_mut(&position)?;
        unsettled.attempts -= 1;
        unsettled.is_started = unsettled.attempts > 0;
        unsettled.state = State::Due;
        unsettled.at = now;
        if !std::mem::replace(&mut unsettled.is_queued, true) {
            self.due.push_back(position);
        }
        Some(unsettled)
    }

    /// The group is about to be closed in order: all members leave, starts of attempts that were not delivered are taken back, and the
    /// lease marks become exact.
    pub fn close(&mut self, now: Millis) {
        for member in self.members().collect::<Vec<_>>() {
            self.leave(member, now);
        }
        for (&position, unsettled) in &mut self.unsettled {
            if matches!(unsettled.state, State::Waiting | State::Due)
                && std::mem::replace(&mut unsettled.is_started, false)
            {
                let Unsettled { attempts, at, reason, .. } = *unsettled;
                let not_before = if unsettled.state == State::Waiting { at } else { 0 };
                self.changes.attempts(AttemptsChange { position, attempts, not_before, reason });
            }
        }
        self.write_exact_marks();
    }

    /// Whether a member has a lease.
    pub fn is_leased_to(&self, member: MemberId, position: Position) -> bool {
        let unsettled = self.unsettled.get(&position);
        unsettled.is_some_and(|it| it.state == State::Leased && it.holder == member)
    }

    /// Puts back what a member reserved and will not read now.
    pub fn unreserve(&mut self, member: MemberId, range: ReservedRange) {
        let Some(state) = self.members.get_mut(&member) else { return };
        if let Some(at) = state.reserved.iter().position(|&it| it == range) {
            state.reserved.swap_remove(at);
            self.give_back_reserved(member, vec![range]);
        }
    }

    /// Takes a member out and answers what it has leased, in order.
    fn remove_member(&mut self, member: MemberId) -> Vec<Position> {
        let Some(state) = self.members.remove(&member) else { return Vec::new() };
        self.give_back_reserved(member, state.reserved);
        if state.in_flight == 0 {
            return Vec::new();
        }
        let theirs = self.unsettled.iter().filter(|(_, it)| it.holder == member && it.state == State::Leased);
        let mut positions: Vec<Position> = theirs.map(|(&position, _)| position).collect();
        positions.sort_unstable();
        positions
    }

    /// A member gets nothing new until it is resumed; its leases go on running.
    pub fn pause(&mut self, member: MemberId, is_paused: bool) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_paused = is_paused;
        }
    }

    /// The server stops reading what a member sends: its leases do not run out until the server reads again.
    pub fn hold(&mut self, member: MemberId) {
        if let Some(member) = self.members.get_mut(&member) {
            member.is_held = true;
        }
    }

    /// The server reads from the member again. What ran out meanwhile gets a moment for acks that are on their way.
    pub fn unhold(&mut self, member: MemberId, now: Millis) {
        // What ran out and was not looked at yet, ran out while the member was held.
        self.advance(now);
        let Some(state) = self.members.get_mut(&member) else { return };
        state.is_held = false;
        for position in std::mem::take(&mut state.overdue) {
            let unsettled = self.unsettled.get_mut(&position);
            let Some(unsettled) =
                unsettled.filter(|it| it.holder == member && it.state == State::Leased && it.at <= now)
            else {
                continue;
            };
            unsettled.at = now + GRACE_MS;
            self.timers.add(now + GRACE_MS, position);
        }
    }
}
