//! Checks after every step: the visible state of the machine equals the model, and the guarantees of docs/delivery.md hold.

use super::image::TopicImage;
use super::model::{Model, Place};
use prombus::delivery::*;
use std::collections::{BTreeMap, BTreeSet};

/// The number of stale timers that is allowed.
const STALE_TIMERS_MAX: usize = 1_100;

/// Compares the visible state of the machine with the model.
pub fn compare(machine: &Group, model: &Model) {
    assert_eq!(machine.source_count(), model.topics.len(), "topics");
    assert_eq!(machine.member_count(), model.members.len(), "members");
    assert!(machine.members().eq(model.members.keys().copied()), "members");
    for &id in model.members.keys() {
        assert!(machine.has_member(id), "{id:?} is a member");
        assert_eq!(machine.window(id), model.window(id), "the window of {id:?}");
    }
    for (source, topic) in model.sources().zip(&model.topics) {
        let (status, floor) = (machine.status(source), topic.floor());
        let above: Vec<u64> = topic.settled.range(floor + 1..).copied().collect();
        let expected =
            SourceStatus { floor, settled_above: above.len() as u64, granted_to: topic.granted_to };
        assert_eq!(status, expected, "status of {source:?}");
        let settled = machine.settled(source);
        assert!(settled.above().flat_map(|(first, last)| first..=last).eq(above), "settled in {source:?}");
        let is_same = |seq| settled.contains(seq) == topic.settled.contains(&seq);
        assert!((1..=topic.granted_to + 1).all(is_same), "settled in {source:?}, one by one");
    }
    compare_unsettled(machine, model);
    assert_eq!(machine.counters(), model.counters, "counters");
    if let Some(at) = model.next_at() {
        assert!(
            machine.wake_at().is_some_and(|wake_at| wake_at <= at),
            "wakes at {:?}, not {at}",
            machine.wake_at()
        );
    }
    let is_due = model.events.values().any(|event| matches!(event.place, Place::Due { .. }));
    let is_free = |source| !model.is_held(source) && !model.fresh(source).is_empty();
    assert_eq!(machine.is_paused(), model.is_paused, "the pause of the group");
    assert!(!machine.is_paused() || !machine.has_work(), "a paused group has no work");
    let has_work = !model.is_paused && (is_due || model.sources().any(is_free));
    assert!(machine.has_work() || !has_work, "has_work() is false although there are events to lease");
}

fn compare_unsettled(machine: &Group, model: &Model) {
    let unsettled: BTreeMap<Position, &Unsettled> = machine.unsettled().collect();
    assert!(
        unsettled.keys().eq(model.events.keys()),
        "unsettled: {:?}, not {:?}",
        unsettled.keys(),
        model.events.keys()
    );
    let mut leased = 0;
    for ((position, found), event) in unsettled.iter().zip(model.events.values()) {
        let is_same = match event.place {
            Place::Leased { until } => found.state == UnsettledState::Leased && found.at == until,
            Place::Waiting { until } => {
                found.state == UnsettledState::Waiting && found.at == until && found.gate == event.gate
            }
            Place::Due { .. } => found.state == UnsettledState::Due && found.gate == event.gate,
            Place::Reserved { by } => found.state == UnsettledState::Reserved(by) && found.gate == event.gate,
            Place::GivingUp => found.state == UnsettledState::GivingUp,
        };
        let holder = event.last_holder.unwrap_or_default();
        let is_same = is_same
            && (found.attempts, found.holder, found.reason) == (event.attempts, holder, event.reason)
            && found.is_started == event.is_started;
        assert!(is_same, "{position:?} is {found:?}, not {event:?}");
        let is_leased = matches!(event.place, Place::Leased { .. });
        assert_eq!(machine.is_leased_to(holder, *position), is_leased, "{position:?} is leased");
        leased += usize::from(found.state == UnsettledState::Leased);
    }
    assert_eq!(machine.counts(), UnsettledCounts { leased, waiting: unsettled.len() - leased }, "counts");
}

/// Guarantees that are checked independently of the model.
#[derive(Debug, Default)]
pub struct Promises {
    /// Settled events, which must not be leased again.
    settled: BTreeSet<Position>,
    /// The last attempt that was handed out and not returned by a member that left.
    last_attempts: BTreeMap<Position, u32>,
    /// Events that were delivered since the start or the last restart.
    delivered_here: BTreeSet<Position>,
    /// Events that were delivered since the start or the last seek, also before restarts.
    delivered: BTreeSet<Position>,
    /// Events that were delivered before the last restart.
    is_from_before: BTreeSet<Position>,
    /// Running leases: the member and the deadline.
    running: BTreeMap<Position, (MemberId, Millis)>,
    /// The highest `max_unsettled` of any member so far.
    unsettled_max: usize,
    /// The most events that were unsettled at once.
    unsettled_peak: usize,
}

impl Promises {
    /// Resets the checks after a restart, which restores the group from disk.
    pub fn restarted(&mut self, topics: &[TopicImage]) {
        self.settled.clear();
        for (number, topic) in topics.iter().enumerate() {
            let source = SourceId(number as u32);
            self.settled.extend(topic.settled.iter().map(|&seq| Position { source, seq }));
        }
        self.delivered_here.clear();
        self.is_from_before = self.delivered.clone();
        self.running.clear();
        self.unsettled_max = 0;
        self.unsettled_peak = 0;
    }

    pub fn joined(&mut self, settings: MemberSettings) {
        self.unsettled_max = self.unsettled_max.max(settings.max_unsettled as usize);
    }

    /// Checks that the attempt and the lease mark of an event are durable before it is delivered.
    pub fn durable(&mut self, lease: &Leased, on_disk: &TopicImage) {
        let Leased { position, attempt, .. } = *lease;
        let known = on_disk.attempts.get(&position.seq).map_or(0, |kept| kept.attempts);
        assert!(
            attempt == 1 || known >= attempt,
            "{lease:?} is delivered, but only {known} attempts are durable"
        );
        assert!(position.seq <= on_disk.leased_to, "{lease:?} is above the durable lease mark");
        let is_first = self.delivered.insert(position);
        assert!(
            is_first || self.is_returned(position) || lease.reason.is_some(),
            "{position:?} was delivered before, and is redelivered without a reason"
        );
    }

    /// Whether it was returned in this process, as if it had not been delivered.
    fn is_returned(&self, position: Position) -> bool {
        self.last_attempts.get(&position) == Some(&1) && !self.is_from_before.contains(&position)
    }

    pub fn leased(&mut self, member: MemberId, settings: MemberSettings, lease: &Leased, now: Millis) {
        let position = lease.position;
        assert!(!self.settled.contains(&position), "{position:?} is settled and leased again");
        let last = self.last_attempts.insert(position, lease.attempt).unwrap_or(0);
        let least = if self.delivered_here.insert(position) { last.max(1) } else { last + 1 };
        assert!(lease.attempt >= least, "{position:?}: attempt {} after {last}", lease.attempt);
        assert!(lease.attempt <= settings.max_attempts, "{position:?}: attempt {}", lease.attempt);
        assert!(lease.attempt == 1 || lease.reason.is_some(), "a redelivery has a reason");
        let before = self.running.insert(position, (member, lease.deadline));
        assert!(
            before.is_none_or(|(_, until)| until <= now),
            "{position:?} has two members: {before:?}, {member:?}"
        );
    }

    pub fn extended(&mut self, position: Position, deadline: Millis) {
        let lease = self.running.get_mut(&position).expect("only a running lease is extended");
        lease.1 = deadline;
    }

    /// Notes that a lease, if there was one, ended before its deadline.
    pub fn ended(&mut self, position: Position) {
        self.running.remove(&position);
    }

    pub fn settled(&mut self, position: Position) {
        self.ended(position);
        assert!(self.settled.insert(position), "{position:?} is settled twice");
    }

    /// Notes that a member with these leases left or was lost.
    pub fn gone(&mut self, leases: &[Position], is_clean: bool) {
        for position in leases {
            self.ended(*position);
            if is_clean {
                *self.last_attempts.get_mut(position).expect("it was leased") -= 1;
            }
        }
    }

    pub fn sought(&mut self, source: SourceId, floor: u64) {
        self.settled.retain(|position| position.source != source);
        self.settled.extend((1..=floor).map(|seq| Position { source, seq }));
        self.last_attempts.retain(|position, _| position.source != source);
        self.delivered.retain(|position| position.source != source);
        self.is_from_before.retain(|position| position.source != source);
        self.running.retain(|position, _| position.source != source);
    }

    /// The checks after every step.
    pub fn check(&mut self, machine: &Group, model: &Model) {
        for source in model.sources() {
            let floor = machine.status(source).floor;
            let is_settled = |seq| self.settled.contains(&Position { source, seq });
            assert!((1..=floor).all(is_settled), "the floor {floor} of {source:?} passed an unsettled event");
        }
        for (&id, member) in &model.members {
            let theirs =
                machine.unsettled().filter(|(_, it)| it.holder == id && it.state == UnsettledState::Leased);
            let count = theirs.count();
            assert!(count <= member.settings.max_in_flight as usize, "{id:?} has {count} in flight");
        }
        let restored = model.events.values().filter(|event| event.is_restored).count();
        let counts = machine.counts();
        let count = counts.leased + counts.waiting;
        self.unsettled_peak = self.unsettled_peak.max(count);
        let timers_max = 4 * self.unsettled_peak + STALE_TIMERS_MAX;
        assert!(machine.timer_count() <= timers_max, "{} timers for {count} events", machine.timer_count());
        let count = count - restored;
        assert!(count <= self.unsettled_max, "{count} unsettled events of at most {}", self.unsettled_max);
    }
}
