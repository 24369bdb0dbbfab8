//! Random histories of the group machine over a topic with parts that cannot be read for a while.
//!
//! Invariants: no unreadable event is leased or settled; within a minute no later event is delivered; after a minute all
//! other events are delivered; a member with `passes_unreadable: false` never gets a later event; once all events are
//! readable, all are delivered and settled. `PROMBUS_SEED` is the seed of the first history.

use crate::group_model::choices::Choices as _;
use crate::support::{Random, setting};
use prombus::delivery::*;
use std::collections::BTreeSet;

const HISTORIES: u64 = 400;
const WAIT_MS: Millis = 60_000;
const SOURCE: SourceId = SourceId(0);

struct History {
    random: Random,
    group: Group,
    member: MemberId,
    may_pass: bool,
    now: Millis,
    last_seq: u64,
    /// The unreadable seqs.
    hidden: BTreeSet<u64>,
    /// When the machine could first have noticed them.
    hidden_at: Millis,
    leased: BTreeSet<u64>,
    acked: BTreeSet<u64>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut group = Group::new(seed);
        assert_eq!(group.add_source(Restored::default()), SOURCE);
        let may_pass = random.chance(70);
        let max_in_flight = random.one_of([1, 5, 100]);
        let settings = MemberSettings {
            max_in_flight,
            batch_size: max_in_flight,
            ack_timeout_ms: Millis::MAX / 2,
            max_unsettled: random.one_of([1, 5, 1_000]),
            passes_unreadable: may_pass,
            ..MemberSettings::default()
        };
        let member = group.join(settings);
        Self {
            random,
            group,
            member,
            may_pass,
            now: 1,
            last_seq: 0,
            hidden: BTreeSet::new(),
            hidden_at: 0,
            leased: BTreeSet::new(),
            acked: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..15 => {
                self.last_seq += self.random.below(8);
                self.group.grant(SOURCE, self.last_seq);
            }
            15..22 if self.hidden.is_empty() => self.hide(),
            22..24 => self.hidden.clear(),
            24..60 => self.pull(),
            60..80 => self.ack(),
            80..97 => self.now += self.random.one_of([10, 100, 1_000, 7_000]),
            _ => self.now += 2 * WAIT_MS,
        }
        if self.random.chance(50) {
            self.group.advance(self.now);
        }
        self.check();
    }

    fn hide(&mut self) {
        let first = self.random.between(1, self.last_seq + 3);
        self.hidden = (first..first + self.random.between(1, 6)).collect();
        // Seqs that the machine already waits for keep their earlier time.
        if self.group.unreadable_count() == 0 {
            self.hidden_at = self.now;
        }
    }

    /// Pulls like a member: reads up to the first unreadable event.
    fn pull(&mut self) {
        let (mut redelivered, mut leased, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
        let want = self.random.one_of([1, 10, 100]);
        let durable = u64::MAX;
        self.group.reserve(self.member, want, None, self.now, durable, &mut redelivered, &mut reserved);
        assert_eq!(redelivered, [], "this test has no redeliveries");
        let mut unreadable = Vec::new();
        for range in reserved {
            let end = (range.first_seq..=range.last_seq).find(|seq| self.hidden.contains(seq));
            let read_to = end.map_or(range.last_seq, |seq| seq - 1);
            let kept: Vec<u64> = (range.first_seq..=read_to).collect();
            assert!(self.group.deliver(self.member, range, read_to, &kept, self.now, &mut leased));
            if let Some(first) = end {
                let last = (first..=range.last_seq).take_while(|seq| self.hidden.contains(seq)).last();
                unreadable.push((first, last.unwrap_or(first)));
            }
        }
        for (first, last) in unreadable {
            self.group.unreadable(SOURCE, first, last, self.may_pass, self.now);
        }
        for lease in &leased {
            let seq = lease.position.seq;
            assert!(!self.hidden.contains(&seq), "{seq} is leased and cannot be read");
            assert!(self.leased.insert(seq), "{seq} is leased twice");
            assert_eq!(lease.attempt, 1);
            let passed = self.hidden.iter().find(|hidden| **hidden < seq && !self.leased.contains(hidden));
            if let Some(passed) = passed {
                let waited = self.now - self.hidden_at;
                assert!(self.may_pass && waited >= WAIT_MS, "{seq} passed {passed} after {waited} ms");
            }
        }
    }

    fn ack(&mut self) {
        let open: Vec<u64> = self.leased.difference(&self.acked).copied().collect();
        if let Some(seq) = self.random.pick(&open) {
            let position = Position { source: SOURCE, seq };
            assert_eq!(self.group.ack(Sender::Member(self.member), position), AckOutcome::Counted);
            self.acked.insert(seq);
        }
    }

    fn check(&self) {
        let settled = self.group.settled(SOURCE);
        for seq in 1..=self.last_seq {
            assert_eq!(settled.contains(seq), self.acked.contains(&seq), "{seq}");
        }
    }

    /// Advances the time, and settles everything that is delivered.
    fn drain(&mut self, ms: Millis) {
        let end = self.now + ms;
        while self.now < end {
            self.now += 500;
            self.group.advance(self.now);
            for _ in 0..20 {
                self.pull();
                while self.leased.len() > self.acked.len() {
                    self.ack();
                }
            }
            self.check();
        }
    }

    fn finish(&mut self) {
        self.last_seq += 20;
        self.group.grant(SOURCE, self.last_seq);
        if self.may_pass {
            self.drain(3 * WAIT_MS);
            // Events that were leased before they became unreadable are acked.
            let hidden: Vec<u64> = self.hidden.difference(&self.acked).copied().collect();
            let there: BTreeSet<u64> = (1..=self.last_seq).filter(|seq| !hidden.contains(seq)).collect();
            assert_eq!(self.acked, there, "later events are delivered");
            let hidden = hidden.iter().filter(|&&seq| seq <= self.last_seq).count() as u64;
            assert_eq!(self.group.unreadable_count(), hidden);
        }
        self.hidden.clear();
        self.drain(WAIT_MS);
        assert_eq!(
            self.acked,
            (1..=self.last_seq).collect::<BTreeSet<u64>>(),
            "all events are acked in the end"
        );
        assert_eq!(self.group.unreadable_count(), 0);
        assert!(!self.group.has_work());
    }
}

#[test]
fn unreadable_events_are_waited_for_and_never_settled() {
    let first = setting("PROMBUS_SEED", 1);
    for seed in first..first + HISTORIES {
        let ran = std::panic::catch_unwind(|| {
            let mut history = History::new(seed);
            for _ in 0..history.random.between(20, 300) {
                history.step();
            }
            history.finish();
        });
        assert!(ran.is_ok(), "PROMBUS_SEED={seed} fails");
    }
}

/// A blocked topic continues when its events were read after all, also if the reservation was used up completely.
#[test]
fn a_blocked_topic_continues_when_another_member_has_read_its_events() {
    let mut group = Group::new(1);
    let source = group.add_source(Restored::default());
    let member =
        group.join(MemberSettings { max_in_flight: 10, batch_size: 10, ..MemberSettings::default() });
    group.grant(source, 50);
    let (mut redelivered, mut leased, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
    group.reserve(member, 10, None, 1, u64::MAX, &mut redelivered, &mut reserved);
    group.unreadable(source, 5, 7, true, 1);
    let kept: Vec<u64> = (1..=10).collect();
    assert!(group.deliver(member, reserved[0], 10, &kept, 2, &mut leased));
    assert!(group.has_work(), "the seqs 11 to 50 are fresh");
    assert_eq!(group.unreadable_count(), 0);
}
