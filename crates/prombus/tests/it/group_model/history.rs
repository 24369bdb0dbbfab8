//! One random history: the machine, the model and the disk, and the calls that go to both machine and model.

use super::check::{Promises, compare};
use super::choices::Choices;
use super::image::{Journal, Record, TopicImage};
use super::model::{Answer, Model, Pull};
use super::settling::Nack;
use crate::support::Random;
use prombus::delivery::*;
use std::collections::BTreeMap;

/// Events that a member has reserved and not read yet.
#[derive(Debug)]
pub struct OpenPull {
    pub redelivered: Vec<Position>,
    pub ranges: Vec<ReservedRange>,
    pub allowed: u32,
    pub is_scan: bool,
}

/// The settings that are fixed for a whole history.
#[derive(Debug)]
pub struct Flavour {
    pub max_unsettled: u32,
    /// The percentage of scanned events that a filter drops.
    pub dropped_percent: u64,
    /// The percentage of deliveries that a member nacks instead of acking.
    pub failing_percent: u64,
    /// The percentage of time steps after which `advance` is called at once.
    pub prompt_percent: u64,
    /// How far ahead of the leases the machine writes lease marks.
    pub mark_ahead: u64,
    /// How many topics a pull reserves from.
    pub side_by_side: usize,
}

pub struct History {
    pub random: Random,
    pub flavour: Flavour,
    pub machine: Group,
    pub model: Model,
    pub journal: Journal,
    pub now: Millis,
    /// The newest seq of each topic.
    pub published: Vec<u64>,
    /// At most one pull of a member is open; it may outlive its member.
    pub pulls: BTreeMap<MemberId, OpenPull>,
    /// Events to give up that were taken, and neither given up nor postponed yet.
    pub named: Vec<GiveUp>,
    pub last_member: MemberId,
    /// A member waits for a lease mark.
    is_mark_awaited: bool,
    /// Whether the group is paused, according to the newest record.
    is_paused: bool,
    promises: Promises,
    trail: Vec<String>,
    step_count: u64,
}

impl History {
    /// The history of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let topic_count = random.between(1, 3);
        let starts = (0..topic_count).map(|_| if random.chance(70) { 0 } else { random.below(20) });
        let published: Vec<u64> = starts.collect();
        let journal = Journal::new(published.iter().map(|&floor| TopicImage::up_to(floor)).collect());
        let flavour = Flavour {
            max_unsettled: random.one_of([3, 10, 30, 1_000]),
            dropped_percent: random.one_of([0, 30, 90]),
            failing_percent: random.one_of([0, 50, 90]),
            prompt_percent: random.one_of([50, 90, 100]),
            mark_ahead: random.one_of([2, 10, MARK_AHEAD]),
            side_by_side: random.one_of([1, 2, 256]),
        };
        let mut history = Self {
            random,
            flavour,
            machine: Group::default(),
            model: Model::default(),
            journal,
            now: 1_000_000,
            published,
            pulls: BTreeMap::new(),
            named: Vec::new(),
            last_member: MemberId(0),
            is_mark_awaited: false,
            is_paused: false,
            promises: Promises::default(),
            trail: Vec::new(),
            step_count: 0,
        };
        history.start();
        history
    }

    pub fn step_count(&self) -> u64 {
        self.step_count
    }

    /// The steps so far, as text.
    pub fn trail(&self) -> &[String] {
        &self.trail
    }

    pub fn log_step(&mut self, what: String) {
        self.trail.push(format!("{} @{}: {what}", self.step_count, self.now));
    }

    /// Removes all but the first `count` lines of the trail.
    pub fn truncate_trail(&mut self, count: usize) {
        self.trail.truncate(count);
    }

    /// Makes one random step, then all checks.
    pub fn step(&mut self) {
        self.step_count += 1;
        self.random_step();
        self.check();
    }

    pub fn check(&mut self) {
        compare(&self.machine, &self.model);
        self.promises.check(&self.machine, &self.model);
    }

    /// Restores the group from disk.
    pub fn start(&mut self) {
        let topics = self.journal.on_disk();
        self.machine = Group::new(self.random.next())
            .with_mark_ahead(self.flavour.mark_ahead)
            .with_topics_side_by_side(self.flavour.side_by_side);
        for (topic, &end) in topics.iter().zip(&self.published) {
            self.machine.add_source(topic.restored(end));
        }
        self.model = Model::new(topics, &self.published);
        self.model.side_by_side = self.flavour.side_by_side;
        self.machine.pause_all(self.is_paused);
        self.model.is_paused = self.is_paused;
        self.promises.restarted(topics);
        self.pulls.clear();
        self.named.clear();
    }

    /// Crashes and restores the group.
    pub fn restart(&mut self) {
        self.log_step(format!("restart with {} of {}", self.journal.durable(), self.journal.generation()));
        self.journal.crash();
        self.start();
    }

    pub fn grant(&mut self, source: SourceId, to: u64) {
        self.log_step(format!("grant {source:?} {to}"));
        self.machine.grant(source, to);
        self.model.grant(source, to);
    }

    pub fn join(&mut self, settings: MemberSettings) -> MemberId {
        let id = self.machine.join(settings);
        self.log_step(format!("join {id:?} {settings:?}"));
        self.model.join(id, settings);
        self.promises.joined(settings);
        self.last_member = id;
        id
    }

    pub fn advance(&mut self) {
        self.log_step("advance".to_owned());
        self.machine.advance(self.now);
        self.model.advance(self.now);
        self.take_over_starts();
    }

    fn take_over_starts(&mut self) {
        let machine = &self.machine;
        let is_started = |position| machine.unsettled().any(|(other, it)| other == position && it.is_started);
        self.model.take_over_starts(is_started);
    }

    pub fn reserve(&mut self, member: MemberId, want: u32, scan: Option<u32>) {
        let pull = Pull { member, want, scan, now: self.now, durable: self.journal.durable() };
        let mut answer = Answer::default();
        let Answer { redelivered, reserved, .. } = &mut answer;
        answer.allowed =
            self.machine.reserve(member, want, scan, pull.now, pull.durable, redelivered, reserved);
        self.log_step(format!("{pull:?} -> {answer:?}"));
        let machine = &self.machine;
        let is_started = |position| machine.unsettled().any(|(other, it)| other == position && it.is_started);
        self.model.reserve(&pull, &answer, |position| machine.is_giving_up(position), is_started);
        self.check_blocked(&pull, &answer);
        if !answer.reserved.is_empty() || !answer.redelivered.is_empty() {
            let Answer { redelivered, reserved, .. } = answer;
            let pull =
                OpenPull { redelivered, ranges: reserved, allowed: answer.allowed, is_scan: scan.is_some() };
            self.pulls.insert(member, pull);
        }
    }

    /// Checks that a pull that finds fresh events only above the durable marks requests higher marks.
    fn check_blocked(&mut self, pull: &Pull, answer: &Answer) {
        let is_blocked = answer.allowed > 0
            && answer.reserved.is_empty()
            && self
                .model
                .sources()
                .any(|source| !self.model.is_held(source) && !self.model.fresh(source).is_empty());
        self.is_mark_awaited |= self.machine.take_mark_awaited();
        let is_in_progress = self.model.topics.iter().any(|topic| !topic.written_marks.is_empty());
        let is_asked = is_in_progress || !self.machine.changes_mut().marks.is_empty();
        assert!(!is_blocked || (is_asked && self.is_mark_awaited), "no mark is written for {pull:?}");
    }

    fn watch_leases(&mut self, member: MemberId, leased: &[Leased]) {
        for lease in leased {
            let settings = self.model.members[&member].settings;
            self.promises.leased(member, settings, lease, self.now);
            let on_disk = &self.journal.on_disk()[lease.position.source.0 as usize];
            self.promises.durable(lease, on_disk);
        }
    }

    pub fn deliver(&mut self, member: MemberId, range: ReservedRange, scanned_to: u64, kept: &[u64]) {
        self.log_step(format!("deliver {member:?} {range:?} scanned to {scanned_to} {kept:?}"));
        let mut leased = Vec::new();
        let is_valid = self.machine.deliver(member, range, scanned_to, kept, self.now, &mut leased);
        let expected = self.model.deliver(member, range, scanned_to, kept, self.now);
        assert_eq!(is_valid.then_some(&leased), expected.as_ref(), "the result of a reservation");
        self.watch_leases(member, &leased);
        if is_valid {
            for seq in (range.first_seq..=scanned_to).filter(|seq| !kept.contains(seq)) {
                self.promises.settled(Position { source: range.source, seq });
            }
        }
    }

    pub fn unreserve(&mut self, member: MemberId, range: ReservedRange) {
        self.log_step(format!("unreserve {member:?} {range:?}"));
        self.machine.unreserve(member, range);
        self.model.unreserve(member, range);
    }

    pub fn ack(&mut self, sender: Sender, position: Position) {
        let settling = self.machine.ack(sender, position);
        self.log_step(format!("ack {sender:?} {position:?} -> {settling:?}"));
        assert_eq!(settling, self.model.ack(sender, position), "an ack");
        if settling == AckOutcome::Counted {
            assert!(self.machine.changes_mut().is_wanted, "an ack must set is_wanted");
            self.promises.settled(position);
        }
    }

    pub fn nack(&mut self, sender: Sender, position: Position, delay: Option<Millis>, error: Option<&str>) {
        let settling = self.machine.nack(sender, position, delay, error, self.now);
        self.log_step(format!("nack {sender:?} {position:?} {delay:?} {error:?} -> {settling:?}"));
        let chosen_until =
            self.machine.unsettled().find(|&(other, _)| other == position).map(|(_, it)| it.at);
        let nack = Nack { delay, error, now: self.now, chosen_until };
        assert_eq!(settling, self.model.nack(sender, position, nack), "a nack");
        self.take_over_starts();
        if settling == AckOutcome::Counted {
            self.promises.ended(position);
        }
    }

    pub fn nack_dead(&mut self, sender: Sender, position: Position, error: Option<&str>) {
        let settling = self.machine.nack_dead(sender, position, error);
        self.log_step(format!("nack for good {sender:?} {position:?} {error:?} -> {settling:?}"));
        assert_eq!(settling, self.model.nack_dead(sender, position, error), "a nack for good");
        if settling == AckOutcome::Counted {
            self.promises.ended(position);
        }
    }

    pub fn extend(&mut self, sender: Sender, position: Position, extend_ms: Millis) {
        let deadline = self.machine.extend(sender, position, extend_ms, self.now);
        self.log_step(format!("extend {sender:?} {position:?} by {extend_ms} -> {deadline:?}"));
        assert_eq!(deadline, self.model.extend(sender, position, extend_ms, self.now), "an extension");
        if let Some(deadline) = deadline {
            self.promises.extended(position, deadline);
        }
    }

    pub fn pass_over_redelivery(&mut self, member: MemberId, position: Position) {
        self.log_step(format!("pass over redelivery {position:?} of {member:?}"));
        self.machine.pass_over_redelivery(member, position);
        if self.model.pass_over_redelivery(member, position) {
            self.promises.settled(position);
        }
    }

    pub fn give_back_lease(&mut self, member: MemberId, position: Position) {
        self.log_step(format!("give back {member:?} {position:?}"));
        if self.model.leased_to(member).contains(&position) {
            self.promises.gone(&[position], true);
        }
        self.machine.give_back_lease(member, position, self.now);
        self.model.give_back_lease(member, position);
    }

    pub fn put_back_redelivery(&mut self, member: MemberId, position: Position) {
        self.log_step(format!("put back {member:?} {position:?}"));
        let was_reserved = self.machine.put_back_redelivery(member, position, self.now);
        assert_eq!(was_reserved, self.model.put_back_redelivery(member, position), "{position:?} is read");
    }

    pub fn hand_out(&mut self, member: MemberId, position: Position) {
        let lease = self.machine.hand_out(member, position, self.now);
        self.log_step(format!("hand out {member:?} {position:?} -> {lease:?}"));
        assert_eq!(lease, self.model.hand_out(member, position, self.now), "the result of a redelivery");
        self.watch_leases(member, lease.as_slice());
    }

    /// Closes cleanly, and starts again.
    pub fn close_and_restart(&mut self) {
        self.log_step("close".to_owned());
        for member in self.model.members.keys().copied().collect::<Vec<_>>() {
            self.promises.gone(&self.model.leased_to(member), true);
        }
        self.machine.close(self.now);
        self.model.close();
        self.take_changes();
        self.sync(self.journal.generation());
        for (topic, on_disk) in self.model.topics.iter().zip(self.journal.on_disk()) {
            assert!(on_disk.leased_to <= topic.leased_to, "the mark is not exact after a clean stop");
        }
        self.restart();
    }

    /// Removes a member that leaves cleanly or is lost.
    pub fn remove_member(&mut self, member: MemberId, is_clean: bool) {
        self.log_step(format!("{} {member:?}", if is_clean { "leave" } else { "lose" }));
        self.promises.gone(&self.model.leased_to(member), is_clean);
        if is_clean {
            self.machine.leave(member, self.now);
            self.model.leave(member);
        } else {
            self.machine.lose(member, self.now);
            self.model.lose(member, self.now);
            self.take_over_starts();
        }
    }

    pub fn pause(&mut self, member: MemberId, is_paused: bool) {
        self.log_step(format!("pause {member:?} {is_paused}"));
        self.machine.pause(member, is_paused);
        self.model.pause(member, is_paused);
    }

    /// Pauses or resumes the whole group. The caller of the machine records that, so it survives restarts.
    pub fn pause_all(&mut self, is_paused: bool) {
        self.log_step(format!("pause all {is_paused}"));
        self.is_paused = is_paused;
        self.machine.pause_all(is_paused);
        self.model.is_paused = is_paused;
    }

    pub fn hold(&mut self, member: MemberId, is_held: bool) {
        self.log_step(format!("hold {member:?} {is_held}"));
        if is_held {
            self.machine.hold(member);
            self.model.hold(member);
        } else {
            self.machine.unhold(member, self.now);
            self.model.unhold(member, self.now);
            self.take_over_starts();
        }
    }

    pub fn cut(&mut self, source: SourceId, first_seq: u64) {
        self.log_step(format!("cut {source:?} {first_seq}"));
        let missed = self.machine.cut(source, first_seq);
        let positions = self.model.cut(source, first_seq);
        assert_eq!(missed, positions.len() as u64, "how many events were missed");
        for position in positions {
            self.promises.settled(position);
        }
        let published = &mut self.published[source.0 as usize];
        *published = first_seq.saturating_sub(1).max(*published);
    }

    pub fn seek(&mut self, source: SourceId, floor: u64) {
        self.log_step(format!("seek {source:?} {floor}"));
        self.machine.seek(source, floor);
        self.model.seek(source, floor);
        self.promises.sought(source, floor);
        let leased_to = floor + self.flavour.mark_ahead;
        self.journal.write(Record::Sought(source, floor, leased_to));
        let generation = self.journal.generation();
        self.machine.marked(source, leased_to, generation);
        self.model.topic(source).written_marks.push((leased_to, generation));
        let published = &mut self.published[source.0 as usize];
        *published = floor.max(*published);
    }

    /// Writes the changes that the machine collected to the journal.
    pub fn take_changes(&mut self) {
        let changes = std::mem::take(self.machine.changes_mut());
        self.log_step(format!("take {changes:?}"));
        assert!(changes.is_wanted || changes.attempts.is_empty(), "failed attempts must set is_wanted");
        for &(source, leased_to) in &changes.marks {
            // The next generation contains it.
            let generation = self.journal.generation() + 1;
            self.model.topic(source).written_marks.push((leased_to, generation));
        }
        let generation = self.journal.write_changes(changes, self.model.image());
        let is_urgent = self.machine.gate(generation);
        let is_waited_for = self.model.gate(generation);
        assert!(is_urgent || !is_waited_for, "events wait for generation {generation}");
    }

    pub fn sync(&mut self, generation: u64) {
        self.log_step(format!("durable up to {generation}"));
        self.journal.sync(generation);
    }

    pub fn take_given_up(&mut self) {
        let mut named = self.machine.take_given_up();
        self.log_step(format!("given up: {named:?}"));
        named.sort_by_key(|give_up| give_up.position);
        assert_eq!(named, self.model.take_given_up(), "events to give up");
        self.named.extend(named);
    }

    /// Settles an event that is being given up, without a dead letter.
    pub fn park(&mut self, position: Position) {
        self.log_step(format!("park {position:?}"));
        if self.model.is_giving_up(position) {
            self.promises.settled(position);
        }
        self.machine.park(position);
        self.model.gave_up(position);
    }

    /// Ends giving up an event: the dead letter is written, or postponed until a time.
    pub fn end_give_up(&mut self, give_up: GiveUp, until: Option<Millis>) {
        self.log_step(format!("end {give_up:?}, put off until {until:?}"));
        let position = give_up.position;
        let is_giving_up = self.machine.is_giving_up(position);
        assert_eq!(is_giving_up, self.model.is_giving_up(position), "{position:?} is being given up");
        if let Some(until) = until {
            self.machine.put_off(give_up.clone(), until);
            self.model.put_off(give_up, until);
            return;
        }
        self.machine.gave_up(position);
        self.model.gave_up(position);
        if is_giving_up {
            self.promises.settled(position);
            self.journal.write(Record::GaveUp(position));
        }
    }
}
