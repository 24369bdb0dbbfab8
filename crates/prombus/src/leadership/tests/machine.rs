//! One test for each rule of the leader lease.

use crate::engine::{LeaseError, LeaseRecord};
use crate::leadership::{Candidate, LeaseMachine, LeasePosition, LeaseStep, LeaseTiming};

/// A process under test. Responses arrive at once, unless a test says otherwise.
struct Process {
    machine: LeaseMachine,
    id: &'static str,
}

#[derive(Default)]
struct Store(Option<LeaseRecord>);

impl Store {
    fn set(&mut self, expected: Option<u64>, record: LeaseRecord) -> bool {
        let is_expected = self.0.as_ref().map(|it| it.revision) == expected;
        if is_expected {
            self.0 = Some(record);
        }
        is_expected
    }

    fn revision(&self) -> u64 {
        self.0.as_ref().map_or(0, |it| it.revision)
    }

    fn leader(&self) -> (&str, u64) {
        self.0.as_ref().map_or(("", 0), |it| (&it.leader_id, it.term))
    }
}

fn lost() -> LeaseError {
    LeaseError("the response was lost".to_owned())
}

impl Process {
    fn new(id: &'static str) -> Self {
        let candidate =
            Candidate { leader_id: id.to_owned(), address: format!("{id}:7070"), cert_hash: None };
        let mut secrets = 0;
        let secret = move || {
            secrets += 1;
            [secrets; 32]
        };
        Self { machine: LeaseMachine::new(LeaseTiming::default(), candidate, secret), id }
    }

    /// Executes all steps that are due at `now`, with immediate responses. Returns the time at which the process must
    /// be called again.
    fn run(&mut self, store: &mut Store, now: u64) -> u64 {
        loop {
            match self.machine.next(now) {
                LeaseStep::Read => self.machine.was_read(Ok(store.0.clone()), now),
                LeaseStep::CompareAndSet { expected, record } => {
                    let set = store.set(expected, record);
                    self.machine.was_set(Ok(set), now);
                }
                LeaseStep::WaitUntil(at) => return at,
                LeaseStep::Stopped => return u64::MAX,
            }
        }
    }

    /// Executes all steps that are due from `from` to `to`.
    fn run_through(&mut self, store: &mut Store, from: u64, to: u64) {
        let mut now = from;
        while now <= to {
            now = self.run(store, now).max(now + 1);
        }
    }

    fn holds(&self) -> Option<u64> {
        match self.machine.position() {
            LeasePosition::Holding { record, .. } => Some(record.term),
            LeasePosition::Following { .. } => None,
        }
    }

    fn is_gate_open(&self, now: u64) -> bool {
        self.machine.gate_deadline().is_some_and(|deadline| now < deadline)
    }

    /// Expects that the next step is a compare-and-set, and returns its parameters.
    fn expect_write(&mut self, now: u64) -> (Option<u64>, LeaseRecord) {
        match self.machine.next(now) {
            LeaseStep::CompareAndSet { expected, record } => (expected, record),
            other => panic!("{} at {now}: {other:?}", self.id),
        }
    }

    fn expect_read(&mut self, now: u64) {
        let step = self.machine.next(now);
        assert_eq!(step, LeaseStep::Read, "{} at {now}", self.id);
    }
}

/// A leader `a` that took the lease at time 0, and a challenger `b` that has read its record.
fn leader_and_challenger() -> (Process, Process, Store) {
    let (mut a, mut b, mut store) = (Process::new("a"), Process::new("b"), Store::default());
    a.run(&mut store, 0);
    b.run(&mut store, 0);
    assert_eq!((a.holds(), b.holds()), (Some(1), None));
    (a, b, store)
}

#[test]
fn a_store_without_a_record_is_taken_at_once() {
    let (mut a, mut store) = (Process::new("a"), Store::default());
    a.run(&mut store, 0);
    assert_eq!(a.holds(), Some(1));
    let record = store.0.expect("was written");
    assert_eq!((record.term, record.revision, record.leader_id.as_str()), (1, 1, "a"));
    assert_eq!((record.address.as_str(), record.secret), ("a:7070", [1; 32]));
}

#[test]
fn the_leader_renews_every_two_seconds() {
    let (mut a, _, mut store) = leader_and_challenger();
    a.run_through(&mut store, 0, 10_000);
    assert_eq!(store.revision(), 1 + 5);
    assert_eq!(store.leader(), ("a", 1));
    assert!(a.is_gate_open(10_000));
}

#[test]
fn a_challenger_polls_every_quarter_of_a_second_and_takes_after_six_seconds_without_a_change() {
    let (_, mut b, mut store) = leader_and_challenger();
    assert_eq!(b.run(&mut store, 0), 250);
    b.run_through(&mut store, 250, 5_999);
    assert_eq!(b.holds(), None, "less than 6 s without a renewal");
    b.run(&mut store, 6_000);
    assert_eq!(b.holds(), Some(2));
    let record = store.0.as_ref().expect("is there");
    assert_eq!((record.term, record.revision, record.leader_id.as_str()), (2, 2, "b"));
    assert_ne!(record.secret, [0; 32]);
}

#[test]
fn a_challenger_never_takes_a_lease_that_is_renewed() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    for now in (0..60_000).step_by(50) {
        a.run(&mut store, now);
        b.run(&mut store, now);
        assert_eq!(b.holds(), None);
    }
    assert_eq!(store.leader(), ("a", 1));
}

#[test]
fn the_gate_closes_five_seconds_after_the_last_renewal_was_sent_and_opens_with_the_next() {
    let (mut a, _, mut store) = leader_and_challenger();
    a.expect_write(2_000);
    a.machine.was_set(Err(lost()), 3_900);
    assert!(a.is_gate_open(4_999));
    assert!(!a.is_gate_open(5_000), "the write that took the lease was sent at 0");
    assert_eq!(a.holds(), Some(1), "a leader does not step down by itself");
    // The store is reachable again, and no other process has taken the lease.
    a.expect_read(9_000);
    a.machine.was_read(Ok(store.0.clone()), 9_100);
    let (expected, record) = a.expect_write(9_100);
    assert!(store.set(expected, record));
    a.machine.was_set(Ok(true), 9_900);
    assert!(a.is_gate_open(9_900));
    assert!(!a.is_gate_open(9_100 + 5_000), "a renewal counts from the time when it was sent");
}

#[test]
fn a_leader_whose_lease_was_taken_steps_down_with_its_next_renewal() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    b.run_through(&mut store, 0, 6_000);
    assert_eq!(b.holds(), Some(2));
    assert!(!a.is_gate_open(6_000), "the gate of a had closed before");
    a.run(&mut store, 20_000);
    assert_eq!(a.holds(), None);
    assert_eq!(a.machine.gate_deadline(), None);
    let LeasePosition::Following { leader } = a.machine.position() else { panic!("it follows") };
    assert_eq!(leader.expect("is known").leader_id, "b");
    assert_eq!(store.leader(), ("b", 2));
}

#[test]
fn a_renewal_whose_response_was_lost_counts_if_it_was_applied() {
    let (mut a, _, mut store) = leader_and_challenger();
    let (expected, record) = a.expect_write(2_000);
    assert!(store.set(expected, record));
    a.machine.was_set(Err(lost()), 4_000);
    a.run(&mut store, 4_000);
    assert_eq!(a.holds(), Some(1));
    assert!(a.is_gate_open(6_999), "the renewal was sent at 2000");
    // The read at 4000 confirmed the renewal that was sent at 2000, so the next one was due and sent.
    assert_eq!(store.revision(), 3);
}

#[test]
fn a_renewal_that_arrives_late_is_recognised_and_counts_from_the_first_attempt() {
    for second_answer in [Ok(false), Err(lost())] {
        let (mut a, _, mut store) = leader_and_challenger();
        let (expected, late) = a.expect_write(2_000);
        a.machine.was_set(Err(lost()), 2_100);
        a.expect_read(2_100);
        a.machine.was_read(Ok(store.0.clone()), 2_200);
        let (again, second) = a.expect_write(3_000);
        assert_eq!((expected, &late), (again, &second), "the same write is repeated");
        assert!(store.set(expected, late), "the first write arrives now");
        assert!(!store.set(again, second));
        a.machine.was_set(second_answer, 3_100);
        assert_eq!(a.holds(), Some(1), "an earlier attempt may have been applied");
        a.expect_read(3_100);
        a.machine.was_read(Ok(store.0.clone()), 3_200);
        assert_eq!(a.holds(), Some(1));
        assert_eq!(a.machine.gate_deadline(), Some(2_000 + 5_000));
    }
}

#[test]
fn a_take_whose_response_was_lost_is_decided_by_reading() {
    for is_applied in [true, false] {
        let (_, mut b, mut store) = leader_and_challenger();
        b.run_through(&mut store, 0, 5_999);
        b.expect_read(6_000);
        b.machine.was_read(Ok(store.0.clone()), 6_000);
        let (expected, record) = b.expect_write(6_000);
        if is_applied {
            assert!(store.set(expected, record));
        }
        b.machine.was_set(Err(lost()), 8_000);
        assert_eq!(b.holds(), None, "the outcome is not known yet");
        b.expect_read(8_000);
        b.machine.was_read(Ok(store.0.clone()), 8_010);
        if is_applied {
            assert_eq!(b.holds(), Some(2));
            assert_eq!(b.machine.gate_deadline(), Some(6_000 + 5_000));
        } else {
            b.run(&mut store, 8_010);
            assert_eq!(b.holds(), Some(2), "the record was unchanged for long enough");
            assert_eq!(b.machine.gate_deadline(), Some(8_010 + 5_000));
        }
        assert_eq!(store.leader(), ("b", 2));
    }
}

#[test]
fn failed_reads_do_not_prove_that_the_record_is_unchanged() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    // The reads of the challenger fail from time 250 on, while the leader renews the lease.
    let mut now = 250;
    while now < 30_000 {
        b.expect_read(now);
        b.machine.was_read(Err(lost()), now + 10);
        assert_eq!(b.holds(), None);
        assert!(
            matches!(b.machine.next(now + 10), LeaseStep::WaitUntil(_)),
            "no write follows a failed read"
        );
        now += 500;
    }
    a.run_through(&mut store, 2_000, 30_000);
    b.run(&mut store, 30_000);
    assert_eq!(b.holds(), None, "the first read after the gap shows a change");
    b.run_through(&mut store, 30_250, 35_999);
    assert_eq!(b.holds(), None);
    b.run_through(&mut store, 36_000, 36_300);
    assert_eq!(b.holds(), Some(2));
}

#[test]
fn two_successful_reads_six_seconds_apart_are_enough_even_if_reads_between_them_fail() {
    let (_, mut b, mut store) = leader_and_challenger();
    for now in (250..10_000).step_by(500) {
        b.expect_read(now);
        b.machine.was_read(Err(lost()), now + 10);
    }
    b.run(&mut store, 10_250);
    assert_eq!(b.holds(), Some(2));
}

#[test]
fn a_response_that_is_handled_late_counts_from_when_its_read_was_sent() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    b.expect_read(250);
    let answer = store.0.clone();
    a.run_through(&mut store, 2_000, 20_000);
    b.machine.was_read(Ok(answer), 20_250);
    assert!(matches!(b.machine.next(20_250), LeaseStep::WaitUntil(_)), "the read was sent at 250");
    b.run_through(&mut store, 20_500, 21_000);
    assert_eq!(b.holds(), None);
}

#[test]
fn of_two_challengers_one_takes_the_lease() {
    let (_, mut b, mut store) = leader_and_challenger();
    let mut c = Process::new("c");
    c.run(&mut store, 0);
    b.run_through(&mut store, 0, 5_999);
    c.run_through(&mut store, 0, 5_999);
    for process in [&mut b, &mut c] {
        process.expect_read(6_000);
        process.machine.was_read(Ok(store.0.clone()), 6_000);
    }
    let (first, second) = (b.expect_write(6_000), c.expect_write(6_000));
    let set = [store.set(first.0, first.1), store.set(second.0, second.1)];
    assert_eq!(set, [true, false]);
    b.machine.was_set(Ok(set[0]), 6_010);
    c.machine.was_set(Ok(set[1]), 6_010);
    c.run(&mut store, 6_010);
    assert_eq!((b.holds(), c.holds()), (Some(2), None));
    assert_eq!(store.leader(), ("b", 2));
}

#[test]
fn a_stop_releases_the_lease_and_a_challenger_takes_it_at_once() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    a.machine.stop(1_000);
    assert_eq!(a.machine.gate_deadline(), None, "the gate closes before the release is sent");
    assert_eq!(a.run(&mut store, 1_000), u64::MAX);
    let record = store.0.clone().expect("is there");
    assert!(record.is_released());
    assert_eq!((record.term, record.revision, record.secret), (1, 2, [0; 32]));
    assert_eq!(a.machine.next(1_000), LeaseStep::Stopped);
    b.run(&mut store, 1_000);
    assert_eq!(b.holds(), Some(2));
    let LeasePosition::Holding { takeover, .. } = b.machine.position() else { panic!("it holds") };
    assert!(takeover.was_released);
}

#[test]
fn a_release_whose_response_was_lost_is_repeated_until_the_record_is_free() {
    let (mut a, _, mut store) = leader_and_challenger();
    a.machine.stop(1_000);
    a.expect_write(1_000);
    a.machine.was_set(Err(lost()), 1_100);
    a.run_through(&mut store, 1_100, 1_300);
    assert!(store.0.as_ref().is_some_and(LeaseRecord::is_released));
    assert_eq!(a.machine.next(1_300), LeaseStep::Stopped);
}

#[test]
fn a_stop_during_a_take_releases_the_lease() {
    let (mut a, mut store) = (Process::new("a"), Store::default());
    a.expect_read(0);
    a.machine.was_read(Ok(None), 0);
    let (expected, record) = a.expect_write(0);
    a.machine.stop(1);
    assert!(store.set(expected, record));
    a.machine.was_set(Err(lost()), 10);
    assert_eq!(a.run(&mut store, 10), u64::MAX);
    assert!(store.0.is_some_and(|it| it.is_released()));
}

#[test]
fn a_process_that_cannot_lead_releases_the_lease_and_pauses() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    a.machine.give_up(5_000, 100);
    a.run_through(&mut store, 100, 200);
    assert!(store.0.as_ref().is_some_and(LeaseRecord::is_released));
    b.machine.set_standby(true);
    b.run_through(&mut store, 250, 3_000);
    assert_eq!(b.holds(), None, "a process on standby does not take the lease");
    a.run_through(&mut store, 200, 5_099);
    assert_eq!(a.holds(), None);
    a.run_through(&mut store, 5_100, 5_400);
    assert_eq!(a.holds(), Some(2), "the term is new, not the one that was given up");
}

#[test]
fn a_deposed_process_does_not_mistake_its_own_old_record_for_a_lease() {
    let (mut a, _, mut store) = leader_and_challenger();
    a.expect_write(2_000);
    a.machine.deposed(2_010);
    assert_eq!((a.holds(), a.machine.gate_deadline()), (None, None));
    // The store applies the renewal that was sent before.
    let Some(record) = &mut store.0 else { panic!("is there") };
    record.revision += 1;
    a.machine.was_set(Ok(true), 2_050);
    a.run_through(&mut store, 2_050, 8_000);
    assert_eq!(a.holds(), None);
    assert_eq!(a.machine.position(), LeasePosition::Following { leader: None }, "a does not follow itself");
    a.expect_read(8_300);
    a.machine.was_read(Ok(store.0.clone()), 8_300);
    a.expect_write(8_300);
    a.machine.was_set(Err(lost()), 8_400);
    a.expect_read(8_400);
    a.machine.was_read(Ok(store.0.clone()), 8_400);
    assert_eq!(a.holds(), None, "the stored record is of the old term of a");
    a.run_through(&mut store, 8_400, 9_000);
    assert_eq!(a.holds(), Some(2), "the old record of a expires like any other");
}

#[test]
fn terms_continue_after_the_record_was_deleted() {
    let (mut a, mut b, mut store) = leader_and_challenger();
    store.0 = None;
    b.run(&mut store, 250);
    assert_eq!(b.holds(), Some(2));
    a.run_through(&mut store, 2_000, 2_100);
    assert_eq!(a.holds(), None);
}

#[test]
fn writes_are_spaced_even_if_the_store_refuses_them_at_once() {
    let mut a = Process::new("a");
    let (mut now, mut asked) = (0, 0);
    while now < 10_000 {
        match a.machine.next(now) {
            LeaseStep::Read => a.machine.was_read(Ok(None), now),
            LeaseStep::CompareAndSet { .. } => {
                a.machine.was_set(if asked % 2 == 0 { Err(lost()) } else { Ok(false) }, now);
                asked += 1;
            }
            LeaseStep::WaitUntil(at) => now = at,
            LeaseStep::Stopped => panic!("stop was not called"),
        }
    }
    assert!((2..=45).contains(&asked), "{asked} writes in 10 s");
}
