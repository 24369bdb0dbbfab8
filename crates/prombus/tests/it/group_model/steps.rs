//! The random steps of a history, and its end, at which everything must be settled.

use super::choices::Choices;
use super::history::{History, OpenPull};
use super::model::Place;
use prombus::delivery::*;

const HOUR_MS: Millis = 3_600_000;
const MEMBERS_MAX: usize = 4;
const PUBLISHED_MAX: u64 = 150;
/// Enough to make the machine remove stale timers.
const REPEATED_EXTENSIONS: u64 = 3_000;

impl History {
    pub fn random_step(&mut self) {
        match self.random.below(1_000) {
            0..60 => self.grant_some(),
            60..260 => self.pull(),
            260..320 => self.deliver_some(),
            320..340 => self.unreserve_some(),
            340..490 => self.ack_some(),
            490..540 => self.nack_one(),
            540..580 => self.extend_one(),
            580..620 => self.join_one(),
            620..640 => self.remove_one(),
            640..655 => self.pause_one(),
            655..665 => self.pause_or_resume_all(),
            665..685 => self.hold_one(),
            685..695 => self.hold_for_a_while(),
            695..805 => self.pass_time(),
            805..812 => self.seek_one(),
            812..815 => self.cut_one(),
            815..845 => self.give_up_some(),
            845..880 => self.take_changes(),
            880..910 => self.sync_some(),
            910..985 => self.commit(),
            985..988 => self.pass_over_one(),
            988..992 => self.give_back_one(),
            992..993 => self.extend_repeatedly(),
            993..998 => self.restart_and_join(),
            _ => self.seek_to_start(),
        }
    }

    fn any_source(&mut self) -> SourceId {
        SourceId(self.random.below(self.published.len() as u64) as u32)
    }

    fn any_member(&mut self) -> Option<MemberId> {
        let members: Vec<MemberId> = self.model.members.keys().copied().collect();
        self.random.pick(&members)
    }

    fn leased(&self) -> Vec<Position> {
        let leased =
            self.model.events.iter().filter(|(_, event)| matches!(event.place, Place::Leased { .. }));
        leased.map(|(&position, _)| position).collect()
    }

    /// Usually a leased event, if there is one; otherwise an unsettled or an arbitrary one.
    fn any_position(&mut self) -> Option<Position> {
        match self.random.below(100) {
            0..80 => {
                let leased = self.leased();
                self.random.pick(&leased)
            }
            80..93 => {
                let unsettled: Vec<Position> = self.model.events.keys().copied().collect();
                self.random.pick(&unsettled)
            }
            _ => {
                let source = self.any_source();
                let published = self.published[source.0 as usize];
                Some(Position { source, seq: self.random.between(1, published + 2) })
            }
        }
    }

    /// Usually the last holder of an event; otherwise any member, even one that is gone or never existed.
    fn any_sender(&mut self, position: Position) -> Sender {
        let holder = self.model.events.get(&position).and_then(|event| event.last_holder);
        match (holder, self.random.below(10)) {
            (Some(holder), 0..6) => Sender::Member(holder),
            (_, 0..8) => Sender::Member(MemberId(self.random.between(1, self.last_member.0 + 1))),
            _ => Sender::LastHolder,
        }
    }

    fn grant_some(&mut self) {
        let source = self.any_source();
        let count = self.random.below(9);
        let published = &mut self.published[source.0 as usize];
        if *published < PUBLISHED_MAX {
            *published += count;
        }
        let to = *published;
        // After a restart, grants may come in parts and may repeat.
        let to = if self.random.chance(20) { self.random.between(to / 2, to) } else { to };
        self.grant(source, to);
    }

    fn join_one(&mut self) {
        if self.model.members.len() < MEMBERS_MAX {
            let max_unsettled = if self.random.chance(90) {
                self.flavour.max_unsettled
            } else {
                self.random.between(1, 40) as u32
            };
            let settings = MemberSettings {
                max_in_flight: self.random.one_of([1, 2, 5, 20]),
                batch_size: self.random.one_of([1, 3, 10]),
                ack_timeout_ms: self.random.one_of([50, 1_000, 5_000, 30_000]),
                max_attempts: self.random.one_of([1, 2, 5, 20]),
                max_unsettled,
                passes_unreadable: self.random.chance(80),
            };
            self.join(settings);
        }
    }

    fn remove_one(&mut self) {
        if let Some(member) = self.any_member() {
            let is_clean = self.random.chance(50);
            self.remove_member(member, is_clean);
        }
    }

    fn pause_one(&mut self) {
        if let Some(member) = self.any_member() {
            let is_paused = self.random.chance(35);
            self.pause(member, is_paused);
        }
    }

    fn pause_or_resume_all(&mut self) {
        let is_paused = self.random.chance(35);
        self.pause_all(is_paused);
    }

    fn hold_one(&mut self) {
        if let Some(member) = self.any_member() {
            let is_held = self.random.chance(50);
            self.hold(member, is_held);
        }
    }

    /// The server does not read from a member until its leases have expired; another caller may extend leases on its behalf
    /// meanwhile.
    fn hold_for_a_while(&mut self) {
        let Some(member) = self.any_member() else { return };
        self.hold(member, true);
        for _ in 0..self.random.between(1, 3) {
            self.pass_time();
            let theirs = self.model.leased_to(member);
            if let Some(position) = self.random.pick(&theirs).filter(|_| self.random.chance(50)) {
                self.extend(Sender::LastHolder, position, 1_500);
            }
        }
        self.hold(member, false);
    }

    fn pull(&mut self) {
        let stranger = MemberId(self.last_member.0 + 1);
        let Some(member) = self.any_member().or_else(|| self.random.chance(5).then_some(stranger)) else {
            return self.join_one();
        };
        if self.pulls.contains_key(&member) {
            return self.finish_pull(member);
        }
        let want = self.random.one_of([1, 4, 100]);
        let scan = self.random.chance(40).then(|| self.random.between(1, 30) as u32);
        self.reserve(member, want, scan);
        if self.random.chance(70) {
            self.finish_pull(member);
        }
    }

    fn deliver_some(&mut self) {
        let members: Vec<MemberId> = self.pulls.keys().copied().collect();
        if let Some(member) = self.random.pick(&members) {
            self.finish_pull(member);
        }
    }

    /// Reads all or a part of a member's reservations.
    fn finish_pull(&mut self, member: MemberId) {
        let Some(OpenPull { redelivered, ranges, mut allowed, is_scan }) = self.pulls.remove(&member) else {
            return;
        };
        for position in redelivered {
            match self.random.below(20) {
                0 => self.put_back_redelivery(member, position),
                1 => self.pass_over_redelivery(member, position),
                _ => self.hand_out(member, position),
            }
        }
        let dropped_percent = if is_scan { self.flavour.dropped_percent } else { 3 };
        for range in ranges {
            let last = if self.random.chance(75) {
                range.last_seq
            } else {
                self.random.between(range.first_seq - 1, range.last_seq)
            };
            let mut kept = Vec::new();
            let mut scanned_to = range.first_seq - 1;
            for seq in range.first_seq..=last {
                let is_dropped = self.random.chance(dropped_percent);
                if !is_dropped && allowed == 0 {
                    break;
                }
                scanned_to = seq;
                if !is_dropped {
                    allowed -= 1;
                    kept.push(seq);
                }
            }
            self.deliver(member, range, scanned_to, &kept);
        }
    }

    fn unreserve_some(&mut self) {
        let members: Vec<MemberId> = self.pulls.keys().copied().collect();
        let Some(member) = self.random.pick(&members) else { return };
        let pull = self.pulls.remove(&member).expect("picked from them");
        for position in pull.redelivered {
            self.put_back_redelivery(member, position);
        }
        for range in pull.ranges {
            self.unreserve(member, range);
        }
    }

    fn ack_some(&mut self) {
        for _ in 0..self.random.between(1, 4) {
            let Some(position) = self.any_position() else { return };
            let sender = self.any_sender(position);
            if self.random.chance(self.flavour.failing_percent) {
                self.nack(sender, position, Some(0), None);
            } else {
                self.ack(sender, position);
            }
        }
    }

    fn nack_one(&mut self) {
        let Some(position) = self.any_position() else { return };
        let sender = self.any_sender(position);
        let delay = self.random.one_of([None, None, Some(0), Some(50), Some(2_000), Some(HOUR_MS)]);
        let error = self.random.one_of([None, Some("it fails")]);
        if self.random.chance(10) {
            self.nack_dead(sender, position, error);
        } else {
            self.nack(sender, position, delay, error);
        }
    }

    fn extend_one(&mut self) {
        let mut expired = self.leased();
        expired.retain(|position| self.model.events[position].place.is_over(self.now));
        // Prefer leases that expired while their member was held.
        let Some(position) = self.random.pick(&expired).or_else(|| self.any_position()) else { return };
        let sender = self.any_sender(position);
        let extend_ms = self.random.one_of([0, 1_500, 20_000]);
        self.extend(sender, position, extend_ms);
    }

    /// Lengthens and shortens a lease repeatedly; each change leaves a stale timer.
    fn extend_repeatedly(&mut self) {
        let leased = self.leased();
        let Some(position) = self.random.pick(&leased) else { return };
        let length = self.trail().len();
        for number in 0..REPEATED_EXTENSIONS {
            self.extend(Sender::LastHolder, position, HOUR_MS + number);
            self.extend(Sender::LastHolder, position, HOUR_MS);
        }
        self.truncate_trail(length);
        self.log_step(format!("lengthen and shorten the lease of {position:?} {REPEATED_EXTENSIONS} times"));
        self.extend(Sender::LastHolder, position, 1_000);
    }

    fn give_back_one(&mut self) {
        if let Some(position) = self.any_position() {
            let holder = self.model.events.get(&position).and_then(|event| event.last_holder);
            if let Some(member) = holder.filter(|_| self.random.chance(80)).or_else(|| self.any_member()) {
                if self.random.chance(20) {
                    self.put_back_redelivery(member, position);
                } else {
                    self.give_back_lease(member, position);
                }
            }
        }
    }

    fn pass_over_one(&mut self) {
        let positions: Vec<Position> = self.model.events.keys().copied().collect();
        if let Some(position) = self.random.pick(&positions) {
            let holder = self.model.events.get(&position).and_then(|event| event.last_holder);
            if let Some(member) = holder.filter(|_| self.random.chance(80)).or_else(|| self.any_member()) {
                self.pass_over_redelivery(member, position);
            }
        }
    }

    fn pass_time(&mut self) {
        let wake_at = self.machine.wake_at().unwrap_or(self.now);
        self.now = match self.random.below(20) {
            0..8 => self.now + self.random.below(60),
            8..12 => self.now + self.random.below(2_500),
            12..14 => self.now.max(wake_at.saturating_sub(1)),
            14..18 => self.now.max(wake_at),
            18 => self.now + self.random.below(40_000),
            _ => self.now + HOUR_MS,
        };
        if self.random.chance(self.flavour.prompt_percent) {
            self.advance();
        }
    }

    fn seek_one(&mut self) {
        let source = self.any_source();
        let floor = self.random.below(self.published[source.0 as usize] + 3);
        self.seek(source, floor);
    }

    fn cut_one(&mut self) {
        let source = self.any_source();
        let first = self.random.below(self.published[source.0 as usize] + 3);
        self.cut(source, first);
    }

    fn seek_to_start(&mut self) {
        let source = self.any_source();
        self.seek(source, 0);
    }

    fn give_up_some(&mut self) {
        self.take_given_up();
        if self.random.chance(25) {
            return;
        }
        for give_up in std::mem::take(&mut self.named) {
            if self.random.chance(20) {
                self.park(give_up.position);
                continue;
            }
            let until = self.random.chance(30).then(|| self.now + self.random.one_of([0, 500, HOUR_MS]));
            let source = give_up.position.source;
            self.end_give_up(give_up, until);
            if until.is_some() && self.random.chance(10) {
                self.seek(source, 0);
            }
        }
    }

    fn sync_some(&mut self) {
        let (durable, newest) = (self.journal.durable(), self.journal.generation());
        let generation = if self.random.chance(60) { newest } else { self.random.between(durable, newest) };
        self.sync(generation);
    }

    fn commit(&mut self) {
        self.take_changes();
        self.sync(self.journal.generation());
    }

    fn restart_and_join(&mut self) {
        if self.random.chance(30) {
            self.close_and_restart();
        } else {
            if self.random.chance(50) {
                self.take_changes();
                self.sync_some();
            }
            self.restart();
        }
        self.join_one();
        for number in 0..self.published.len() {
            if self.random.chance(70) {
                self.grant(SourceId(number as u32), self.published[number]);
            }
        }
    }
}

impl History {
    /// Ends the history. Nothing is lost: one healthy member gets all remaining events and acks them.
    pub fn finish(&mut self) {
        self.pause_all(false);
        for member in self.model.members.keys().copied().collect::<Vec<_>>() {
            let is_clean = self.random.chance(50);
            self.remove_member(member, is_clean);
        }
        for number in 0..self.published.len() {
            self.grant(SourceId(number as u32), self.published[number]);
        }
        for give_up in std::mem::take(&mut self.named) {
            self.end_give_up(give_up, None);
        }
        let max_attempts = self.random.one_of([1, 3, 1_000]);
        let member = self.join(MemberSettings { max_attempts, ..MemberSettings::default() });
        // Every round advances to the next timer; the number of timers is limited by the number of events.
        let mut rounds_left = 3 * self.published.iter().sum::<u64>() + 10;
        while !self.is_done() {
            rounds_left = rounds_left.checked_sub(1).expect("everything is settled within this many rounds");
            self.drain(member);
            self.check();
            self.now = self.now.max(self.machine.wake_at().unwrap_or(0));
        }
        self.drain(member);
        assert!(!self.machine.has_work(), "there is nothing left to lease");
        assert_eq!(self.machine.counts(), UnsettledCounts::default(), "nothing is unsettled");
        self.restart();
        self.check();
        assert!(self.is_done(), "the settled state is durable");
    }

    fn is_done(&self) -> bool {
        let mut topics = self.model.sources().zip(&self.published);
        topics.all(|(source, &published)| self.machine.status(source).floor >= published)
    }

    /// Makes everything durable, and lets a member ack all events that it can get.
    fn drain(&mut self, member: MemberId) {
        self.advance();
        self.commit();
        loop {
            self.reserve(member, 1_000, None);
            let pull = self.pulls.remove(&member);
            let (redelivered, ranges) = pull.map(|pull| (pull.redelivered, pull.ranges)).unwrap_or_default();
            for position in redelivered {
                self.hand_out(member, position);
            }
            for range in ranges {
                let all: Vec<u64> = (range.first_seq..=range.last_seq).collect();
                self.deliver(member, range, range.last_seq, &all);
            }
            let leased = self.model.leased_to(member);
            for &position in &leased {
                self.ack(Sender::Member(member), position);
            }
            if leased.is_empty() {
                if self.machine.changes_mut().is_empty() {
                    break;
                }
                // Starts of attempts, or lease marks, must become durable first.
                self.commit();
            }
        }
        self.take_given_up();
        for give_up in std::mem::take(&mut self.named) {
            self.end_give_up(give_up, None);
        }
        self.commit();
    }
}
