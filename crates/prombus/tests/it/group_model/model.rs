//! A naive model of a consumer group: maps of single seqs, linear searches, no timers, no queues.
//!
//! Where the machine has a choice (the order of redeliveries that became due together, the next topic, the jitter of a
//! backoff), the model adopts the machine's choice and only checks that it is allowed.
//!
//! Like the machine it learns the time only from [`Model::advance`], [`Model::reserve`], [`Model::lose`] and [`Model::unhold`].

use super::image::{Kept, TopicImage};
use prombus::delivery::*;
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, BTreeSet};

/// The gate of an event whose failed attempt is not recorded yet.
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
    /// Ready to be redelivered; an event with a lower turn became due earlier.
    Due {
        turn: u64,
    },
    /// A member reads it; no lease runs yet.
    Reserved {
        by: MemberId,
    },
    GivingUp,
}

impl Place {
    /// Whether its lease or its wait has ended at that time.
    pub fn is_over(self, now: Millis) -> bool {
        match self {
            Self::Leased { until } | Self::Waiting { until } => until <= now,
            Self::Due { .. } | Self::Reserved { .. } | Self::GivingUp => true,
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
    /// The attempts that the records must contain.
    pub kept: Option<Kept>,
    pub is_restored: bool,
    /// Whether the start of its next attempt is recorded.
    pub is_started: bool,
    /// A pull found it due but gated: it is delivered once the gate is durable, whatever its turn.
    pub is_out_of_turn: bool,
    /// It was nacked while it was due, so it may be delivered at its old turn or at its new one.
    pub has_two_turns: bool,
}

impl Event {
    /// Records the start of the next attempt. If that record is ever read, the process died during the attempt.
    pub fn start(&mut self) {
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
    /// Attempts from before a restart, of seqs that are not granted yet.
    pub restored: BTreeMap<u64, Kept>,
    /// Consecutive pulls that took fresh events of other topics although this topic had some too.
    pub passed_by: usize,
    /// The durable lease mark: no event above it is leased.
    pub durable_mark: u64,
    /// Written marks, with their generations.
    pub written_marks: Vec<(u64, u64)>,
    /// Events up to here may have been delivered before the last restart.
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
    /// Topics of which it may have reserved more events than it will deliver.
    pub held: BTreeSet<SourceId>,
    /// Its last pull found nothing.
    pub is_idle: bool,
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

/// The result of a pull.
#[derive(Debug, Default)]
pub struct Answer {
    pub allowed: u32,
    pub redelivered: Vec<Position>,
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
    /// Whether the whole group is paused.
    pub is_paused: bool,
    /// How many topics a pull reserves from.
    pub side_by_side: usize,
    last_turn: u64,
}

impl Model {
    /// A group that is restored from disk. `ends` are the newest seqs of the topics.
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

    /// The state that must survive a crash if all records are durable.
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

    /// Granted seqs that are neither leased, reserved, waiting nor settled.
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
            is_idle: false,
        };
        assert!(self.members.insert(id, member).is_none(), "{id:?} is assigned twice");
    }

    /// The leases of a member, in order.
    pub fn leased_to(&self, member: MemberId) -> Vec<Position> {
        let theirs = self.events.iter().filter(|(_, event)| {
            event.last_holder == Some(member) && matches!(event.place, Place::Leased { .. })
        });
        theirs.map(|(&position, _)| position).collect()
    }

    /// Redeliveries that a member has reserved, in order.
    pub fn reserved_by(&self, member: MemberId) -> Vec<Position> {
        let theirs = self.events.iter().filter(|(_, event)| event.place == Place::Reserved { by: member });
        theirs.map(|(&position, _)| position).collect()
    }

    /// How many events one pull of a member may lease.
    pub fn window(&self, id: MemberId) -> u32 {
        let member = &self.members[&id];
        let in_flight = self.leased_to(id).len() as u32;
        let room = member.settings.max_in_flight.saturating_sub(in_flight);
        if member.is_paused || self.is_paused { 0 } else { room.min(member.settings.batch_size) }
    }

    pub fn next_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.last_turn
    }

    pub fn advance(&mut self, now: Millis) {
        let mut expired = Vec::new();
        for (&position, event) in &self.events {
            let Place::Leased { until } = event.place else { continue };
            let is_held = event.last_holder.is_some_and(|holder| self.members[&holder].is_held);
            if until <= now && !is_held {
                expired.push((position, until));
            }
        }
        for (position, until) in expired {
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

    /// The time of the next timer.
    pub fn next_at(&self) -> Option<Millis> {
        let events = self.events.values().filter_map(|event| match event.place {
            Place::Leased { until } => {
                let holder = event.last_holder.expect("a lease has a holder");
                (!self.members[&holder].is_held).then_some(until)
            }
            Place::Waiting { until } => Some(until),
            Place::Due { .. } | Place::Reserved { .. } | Place::GivingUp => None,
        });
        events.chain(self.put_off.iter().map(|&(until, _)| until)).min()
    }

    /// Fails an attempt: the event is redelivered after `until`, or given up.
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

    /// Adopts attempts that the machine has started: it may start the next attempt of a due event before a pull, if members
    /// wait for events.
    pub fn take_over_starts(&mut self, is_started: impl Fn(Position) -> bool) {
        let room = self.idle_room();
        let mut started = 0;
        for (&position, event) in &mut self.events {
            let is_due = matches!(event.place, Place::Due { .. });
            if is_due && event.attempts > 0 && !event.is_started && is_started(position) {
                event.start();
                started += 1;
            }
        }
        assert!(started <= room, "{started} attempts are started, but waiting members can take only {room}");
    }

    pub(super) fn give_up(&mut self, position: Position, error: &str) {
        let event = self.event(position);
        event.place = Place::GivingUp;
        let attempts = event.attempts;
        let error = error.to_owned();
        self.named.push(GiveUp { position, attempts, spent: attempts, error, is_recorded: false });
    }
}
