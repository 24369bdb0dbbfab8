//! A consumer group, naively: maps of single seqs, everything found by looking at all of it, no timers, no queues.
//!
//! Where the machine may choose (which of several redeliveries that became due at once comes first, which topic is next, how a
//! backoff is spread), the model takes the machine's answer and only checks that it was one of the right ones.
//!
//! Like the machine it learns the time only from [`Model::advance`], [`Model::reserve`], [`Model::lose`] and [`Model::unhold`].

use super::image::{Kept, TopicImage};
use prombus::delivery::*;
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet};

/// Its failure is not among the records yet.
pub const NOT_WRITTEN: u64 = u64::MAX;

/// Where an unsettled event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Leased {
        until: Millis,
    },
    Waiting {
        until: Millis,
    },
    /// To be delivered again now; who has the lower turn became so earlier.
    Due {
        turn: u64,
    },
    GivingUp,
}

impl Place {
    /// Its lease or its wait is over at that time.
    pub fn is_over(self, now: Millis) -> bool {
        match self {
            Self::Leased { until } | Self::Waiting { until } => until <= now,
            Self::Due { .. } | Self::GivingUp => true,
        }
    }
}

/// An unsettled event that was leased, now or before a restart.
#[derive(Clone, Debug)]
pub struct Event {
    pub place: Place,
    pub attempts: u32,
    pub last_holder: Option<MemberId>,
    /// The last holder's `max_attempts`.
    pub limit: u32,
    pub reason: Option<RedeliveryReason>,
    /// The generation that must be durable before it is delivered again.
    pub gate: u64,
    /// What the records must say about it.
    pub kept: Option<Kept>,
    pub is_restored: bool,
    /// The start of its next attempt is among the records.
    pub is_started: bool,
    /// A pull found it due but not durable: it comes when that is over, whatever its turn.
    is_out_of_turn: bool,
    /// It was nacked while it was due, so it may come at its old turn or at its new one, also later.
    pub has_two_turns: bool,
}

impl Event {
    /// The start of the next attempt is written down. If it is ever read, the process died.
    fn start(&mut self) {
        self.is_started = true;
        self.gate = NOT_WRITTEN;
        let reason = Some(RedeliveryReason::ServerRestarted);
        self.kept = Some(Kept { attempts: self.attempts + 1, not_before: 0, reason });
    }
}

#[derive(Debug, Default)]
pub struct Topic {
    pub granted_to: u64,
    pub settled: BTreeSet<u64>,
    /// Known from before a restart, not granted yet.
    pub restored: BTreeMap<u64, Kept>,
    /// Pulls that took something fresh elsewhere, although this topic had some too.
    pub passed_by: usize,
    /// Nothing above it is leased.
    pub durable_mark: u64,
    /// Marks that are written, with their generations.
    pub written_marks: Vec<(u64, u64)>,
    /// Up to here events may have been delivered before the last restart.
    pub restarted_to: u64,
    /// The highest seq that was leased.
    pub leased_to: u64,
}

impl Topic {
    pub fn floor(&self) -> u64 {
        (1..).take_while(|seq| self.settled.contains(seq)).last().unwrap_or(0)
    }
}

#[derive(Debug)]
pub struct Member {
    pub settings: MemberSettings,
    pub is_paused: bool,
    pub is_held: bool,
    pub reserved: Vec<ReservedRange>,
    /// Topics of which it has reserved more than it may deliver.
    pub held: BTreeSet<SourceId>,
    /// Its last pull found nothing.
    pub is_hungry: bool,
}

/// One call of `reserve`.
#[derive(Clone, Copy, Debug)]
pub struct Pull {
    pub member: MemberId,
    pub want: u32,
    pub scan: Option<u32>,
    pub now: Millis,
    pub durable: u64,
}

/// What it answered.
#[derive(Debug, Default)]
pub struct Answer {
    pub allowed: u32,
    pub leased: Vec<Leased>,
    pub reserved: Vec<ReservedRange>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub topics: Vec<Topic>,
    pub events: BTreeMap<Position, Event>,
    pub members: BTreeMap<MemberId, Member>,
    pub counters: GroupCounters,
    pub named: Vec<GiveUp>,
    pub put_off: Vec<(Millis, GiveUp)>,
    /// How many topics a pull reserves from.
    pub side_by_side: usize,
    last_turn: u64,
}

impl Model {
    /// A group that starts from what is on disk. `ends` are the newest seqs of the topics.
    pub fn new(topics: &[TopicImage], ends: &[u64]) -> Self {
        let mut model = Self::default();
        for (image, &end) in topics.iter().zip(ends) {
            let restarted_to = image.leased_to.min(end);
            let mut topic = Topic {
                settled: image.settled.clone(),
                restored: image.attempts.clone(),
                durable_mark: image.leased_to,
                restarted_to,
                leased_to: restarted_to,
                ..Topic::default()
            };
            topic.granted_to = topic.floor();
            model.topics.push(topic);
        }
        model
    }

    /// What must survive a crash, were everything durable now.
    pub fn image(&self) -> Vec<TopicImage> {
        let topics = self.topics.iter();
        let images = topics.map(|topic| TopicImage {
            settled: topic.settled.clone(),
            attempts: topic.restored.clone(),
            leased_to: topic.written_marks.last().map_or(topic.durable_mark, |&(mark, _)| mark),
        });
        let mut images: Vec<_> = images.collect();
        for (position, event) in &self.events {
            if let Some(kept) = event.kept {
                images[position.source.0 as usize].attempts.insert(position.seq, kept);
            }
        }
        images
    }

    pub fn topic(&mut self, source: SourceId) -> &mut Topic {
        &mut self.topics[source.0 as usize]
    }

    pub fn settle(&mut self, position: Position) {
        self.events.remove(&position);
        self.topic(position.source).settled.insert(position.seq);
    }

    pub fn grant(&mut self, source: SourceId, to: u64) {
        let topic = self.topic(source);
        topic.granted_to = topic.granted_to.max(to);
        let later = topic.restored.split_off(&(topic.granted_to + 1));
        for (seq, kept) in std::mem::replace(&mut topic.restored, later) {
            let event = Event {
                place: Place::Waiting { until: kept.not_before },
                attempts: kept.attempts,
                last_holder: None,
                limit: u32::MAX,
                reason: kept.reason,
                gate: 0,
                kept: Some(kept),
                is_restored: true,
                is_started: false,
                is_out_of_turn: false,
                has_two_turns: false,
            };
            self.events.insert(Position { source, seq }, event);
        }
    }

    /// Seqs that may be leased and that nobody has had, reserved, or is done with.
    pub fn fresh(&self, source: SourceId) -> BTreeSet<u64> {
        let topic = &self.topics[source.0 as usize];
        let mut fresh: BTreeSet<u64> =
            (1..=topic.granted_to).filter(|seq| !topic.settled.contains(seq)).collect();
        fresh.retain(|&seq| !self.events.contains_key(&Position { source, seq }));
        for range in self.reserved().filter(|range| range.source == source) {
            fresh.retain(|seq| !(range.first_seq..=range.last_seq).contains(seq));
        }
        fresh
    }

    pub fn sources(&self) -> impl Iterator<Item = SourceId> + use<> {
        (0..self.topics.len() as u32).map(SourceId)
    }

    pub fn reserved(&self) -> impl Iterator<Item = &ReservedRange> {
        self.members.values().flat_map(|member| &member.reserved)
    }

    pub fn join(&mut self, id: MemberId, settings: MemberSettings) {
        let member = Member {
            settings,
            is_paused: false,
            is_held: false,
            reserved: Vec::new(),
            held: BTreeSet::new(),
            is_hungry: false,
        };
        assert!(self.members.insert(id, member).is_none(), "{id:?} is given twice");
    }

    /// What a member has leased, in order.
    pub fn leased_to(&self, member: MemberId) -> Vec<Position> {
        let theirs = self.events.iter().filter(|(_, event)| {
            event.last_holder == Some(member) && matches!(event.place, Place::Leased { .. })
        });
        theirs.map(|(&position, _)| position).collect()
    }

    /// How much one pull of a member may lease.
    pub fn window(&self, id: MemberId) -> u32 {
        let member = &self.members[&id];
        let in_flight = self.leased_to(id).len() as u32;
        let room = member.settings.max_in_flight.saturating_sub(in_flight);
        if member.is_paused { 0 } else { room.min(member.settings.batch_size) }
    }

    pub fn next_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.last_turn
    }

    pub fn advance(&mut self, now: Millis) {
        let mut ran_out = Vec::new();
        for (&position, event) in &self.events {
            let Place::Leased { until } = event.place else { continue };
            let is_held = event.last_holder.is_some_and(|holder| self.members[&holder].is_held);
            if until <= now && !is_held {
                ran_out.push((position, until));
            }
        }
        for (position, until) in ran_out {
            self.counters.expired += 1;
            self.fail(position, RedeliveryReason::LeaseExpired, until, "lease_expired");
        }
        let mut due: BTreeMap<Millis, Vec<Position>> = BTreeMap::new();
        for (&position, event) in &self.events {
            match event.place {
                Place::Waiting { until } if until <= now => due.entry(until).or_default().push(position),
                _ => {}
            }
        }
        for positions in due.into_values() {
            let turn = self.next_turn();
            for position in positions {
                self.event(position).place = Place::Due { turn };
            }
        }
        for (until, give_up) in std::mem::take(&mut self.put_off) {
            if until > now {
                self.put_off.push((until, give_up));
            } else if self.is_giving_up(give_up.position) {
                self.named.push(give_up);
            }
        }
    }

    pub fn event(&mut self, position: Position) -> &mut Event {
        self.events.get_mut(&position).expect("the model knows the event")
    }

    /// The next time at which something happens by itself.
    pub fn next_at(&self) -> Option<Millis> {
        let events = self.events.values().filter_map(|event| match event.place {
            Place::Leased { until } => {
                let holder = event.last_holder.expect("a lease has a holder");
                (!self.members[&holder].is_held).then_some(until)
            }
            Place::Waiting { until } => Some(until),
            Place::Due { .. } | Place::GivingUp => None,
        });
        events.chain(self.put_off.iter().map(|&(until, _)| until)).min()
    }

    /// An attempt failed: it is tried again from a time on, or given up.
    pub fn fail(&mut self, position: Position, reason: RedeliveryReason, until: Millis, error: &str) {
        let event = self.event(position);
        if event.attempts >= event.limit {
            self.give_up(position, error);
        } else {
            self.wait(position, reason, until);
        }
    }

    pub fn wait(&mut self, position: Position, reason: RedeliveryReason, until: Millis) {
        let event = self.event(position);
        event.place = Place::Waiting { until };
        event.reason = Some(reason);
        event.gate = NOT_WRITTEN;
        event.is_started = false;
        event.kept = Some(Kept { attempts: event.attempts, not_before: until, reason: Some(reason) });
    }

    /// The machine may start the next attempt of an event that is due before anybody pulls it, if members wait for events.
    pub fn take_over_starts(&mut self, is_started: impl Fn(Position) -> bool) {
        let room = self.hungry_room();
        let mut started = 0;
        for (&position, event) in &mut self.events {
            let is_due = matches!(event.place, Place::Due { .. });
            if is_due && event.attempts > 0 && !event.is_started && is_started(position) {
                event.start();
                started += 1;
            }
        }
        assert!(started <= room, "{started} attempts are started for {room} that members wait for");
    }

    /// How much the members could take whose last pull found nothing.
    fn hungry_room(&self) -> u32 {
        let hungry = self.members.iter().filter(|(_, member)| member.is_hungry);
        hungry.map(|(&id, _)| self.window(id)).sum()
    }

    pub(super) fn give_up(&mut self, position: Position, error: &str) {
        let event = self.event(position);
        event.place = Place::GivingUp;
        let attempts = event.attempts;
        let error = error.to_owned();
        self.named.push(GiveUp { position, attempts, spent: attempts, error, is_written_down: false });
    }

    /// Checks a pull's answer, and takes it over. Which events are given up, and of which the next attempt is started, is the
    /// machine's choice.
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
            assert!(answer.leased.is_empty() && answer.reserved.is_empty(), "a stranger got something");
            return;
        };
        member.is_hungry = true;
        let settings = member.settings;
        let window = self.window(pull.member).min(pull.want);
        let mut left = 0;
        if window > 0 {
            left = self.lease_due(pull, settings, window, &answer.leased, (is_giving_up, is_started));
        } else {
            self.take_over_starts(is_started);
            assert!(answer.leased.is_empty(), "there was no window");
        }
        let reserved: u64 = self.reserved().map(ReservedRange::count).sum();
        let room = u64::from(settings.max_unsettled).saturating_sub(self.events.len() as u64 + reserved);
        let allowed = room.min(u64::from(left)) as u32;
        assert_eq!(answer.allowed, allowed, "how much of it may be delivered");
        let most = if allowed == 0 { 0 } else { u64::from(pull.scan.unwrap_or(allowed)) };
        self.take_fresh(pull.member, most, pull.scan.is_some(), &answer.reserved);
        let member = self.members.get_mut(&pull.member).expect("looked at above");
        member.is_hungry = answer.leased.is_empty() && answer.reserved.is_empty();
    }

    /// Redeliveries: as many as there are and fit, those first that became due first. One from the second attempt on is leased
    /// only once its start is durable. The machine may stop looking when as many wait for that as all members could take.
    /// Answers how much is left for fresh events: what waits comes before them.
    fn lease_due(
        &mut self,
        pull: &Pull,
        settings: MemberSettings,
        window: u32,
        leased: &[Leased],
        (is_giving_up, is_started): (impl Fn(Position) -> bool, impl Fn(Position) -> bool),
    ) -> u32 {
        let room = self.hungry_room();
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
        assert!(started <= room, "{started} attempts are started for {room} that members could take");
        let may_stop = gated + started >= room;
        let expected = ready.len().min(window as usize);
        assert!(
            leased.len() == expected || (may_stop && leased.len() < expected),
            "{} due redeliveries, of {ready:?}",
            leased.len()
        );
        let is_full = leased.len() == window as usize;
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
        for lease in leased {
            let turn =
                ready.remove(&lease.position).expect("what is leased is due, durable, and leased once");
            if turn.is_some() {
                assert!(turn >= newest_turn, "{lease:?} is out of turn");
                newest_turn = turn;
            }
            let event = self.event(lease.position);
            event.attempts += 1;
            event.last_holder = Some(pull.member);
            event.limit = settings.max_attempts;
            event.is_out_of_turn = false;
            event.is_started = false;
            let until = pull.now + settings.ack_timeout_ms;
            event.place = Place::Leased { until };
            let (attempt, reason) = (event.attempts, event.reason);
            assert!(
                attempt == 1 || event.kept.is_some_and(|kept| kept.attempts == attempt),
                "{lease:?} leaves before its attempt is written down"
            );
            assert_eq!(*lease, Leased { position: lease.position, attempt, deadline: until, reason });
            let counters = &mut self.counters;
            match reason {
                Some(RedeliveryReason::LeaseExpired) => counters.redelivered_expired += 1,
                Some(RedeliveryReason::Nacked) => counters.redelivered_nacked += 1,
                Some(RedeliveryReason::MemberLost) => counters.redelivered_lost += 1,
                Some(RedeliveryReason::ServerRestarted) => counters.redelivered_restarted += 1,
                None => {}
            }
        }
        self.counters.delivered += leased.len() as u64;
        let left = ready.values().flatten().min();
        assert!(left.is_none_or(|turn| Some(*turn) >= newest_turn), "what became due first was left");
        window.saturating_sub(leased.len() as u32 + gated + started)
    }

    /// Fresh seqs: as many as there are and fit, of each topic the lowest, topics in turn.
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
            assert!(topic.passed_by < topic_count, "{source:?} is not given its turn");
        }
        let member = self.members.get_mut(&member).expect("looked at by the caller");
        member.reserved.extend_from_slice(ranges);
        if is_merged {
            member.held.extend(ranges.iter().map(|range| range.source));
        }
    }

    /// A member has reserved more of a topic than it may deliver: no other member gets any of it.
    pub fn is_held(&self, source: SourceId) -> bool {
        self.members.values().any(|member| member.held.contains(&source))
    }

    /// What a member reads becomes leased; `None` when its reservation is void.
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

    /// Gives a reservation back. False when it is void.
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
