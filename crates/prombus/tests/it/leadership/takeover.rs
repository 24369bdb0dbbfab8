//! Takeovers, step by step: the leader dies, pauses, loses responses or stops.

use super::process::{Process, check_fences, pass, stored};
use prombus::engine::simulated::{Database, LeaseFault};
use prombus::engine::{SharedStore as _, Takeover};
use prombus::{Clock as _, ManualClock, OpenError, PublishError, Unavailable};

/// The step at which the first leader dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    BeforeTheCompareAndSet,
    AfterTheCompareAndSet,
    BeforeTheFence,
    AfterTheFence,
    BeforeTheFirstCommit,
    AfterTheFirstCommit,
    AfterRenewals,
}

const DEATHS: [Death; 7] = [
    Death::BeforeTheCompareAndSet,
    Death::AfterTheCompareAndSet,
    Death::BeforeTheFence,
    Death::AfterTheFence,
    Death::BeforeTheFirstCommit,
    Death::AfterTheFirstCommit,
    Death::AfterRenewals,
];

/// Leads up to a step, and dies there. Returns the confirmed payloads.
async fn lead_until(death: Death, mut a: Process, clock: &ManualClock) -> Vec<u64> {
    a.lease_step().await;
    if death == Death::BeforeTheCompareAndSet {
        a.kill();
        return Vec::new();
    }
    if death == Death::AfterTheCompareAndSet {
        a.store.fault_of_next_write(Some(LeaseFault::AnswerLost));
    }
    a.lease_step().await;
    if death == Death::AfterTheCompareAndSet || death == Death::BeforeTheFence {
        a.kill();
        return Vec::new();
    }
    a.open().await.expect("opens");
    let mut confirmed = Vec::new();
    match death {
        Death::AfterTheFence => {}
        Death::BeforeTheFirstCommit => {
            a.cut_off();
            let publish = a.bus().publish("orders", &1).into_future();
            let lost = tokio::time::timeout(std::time::Duration::from_millis(20), publish).await;
            assert!(!matches!(lost, Ok(Ok(_))), "the publish must not be confirmed");
        }
        _ => {
            a.publish(1).await.expect("publishes");
            confirmed.push(1);
        }
    }
    if death == Death::AfterRenewals {
        for payload in 2..=9 {
            pass(clock, 1_000, &mut [&mut a]).await;
            a.publish(payload).await.expect("publishes");
            confirmed.push(payload);
        }
    }
    a.kill();
    confirmed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_the_leader_dies_the_next_one_takes_over_and_no_confirmed_event_is_lost() {
    for death in DEATHS {
        let (database, clock) = (Database::new(), ManualClock::new(1_000));
        let confirmed = lead_until(death, Process::new("a", &database, &clock), &clock).await;
        let mut b = Process::new("b", &database, &clock);
        let start = clock.steady_ms();
        while b.leading.is_none() {
            pass(&clock, 50, &mut [&mut b]).await;
            assert!(clock.steady_ms() - start <= 6_500, "{death:?}: no process leads");
        }
        let found = database.term();
        let terms = if death == Death::BeforeTheCompareAndSet { 1 } else { 2 };
        assert_eq!((b.holds(), found), (Some(terms), terms), "{death:?}");
        assert_eq!(stored(b.bus()).await, confirmed, "{death:?}");
        let seq = b.publish(100).await.expect("publishes");
        assert_eq!(seq, confirmed.len() as u64 + 1, "{death:?}");
        check_fences(&database);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_paused_for_twenty_seconds_writes_nothing_leases_nothing_and_follows() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    a.run().await;
    for payload in 1..=4 {
        a.publish(payload).await.expect("publishes");
    }
    let mut orders =
        a.bus().subscribe("orders", "billing").from_earliest().batch_size(1).await.expect("joins");
    let held = orders.next().await.expect("an event").expect("is readable");
    // Process a is stopped; b takes over after 6 s.
    pass(&clock, 20_000, &mut [&mut b]).await;
    assert_eq!(b.holds(), Some(2));
    b.publish(5).await.expect("publishes");
    let before = (database.commit(), stored(b.bus()).await);

    // It wakes, and its members are polled before anything else runs.
    let leased = tokio::time::timeout(std::time::Duration::from_millis(50), orders.next()).await;
    assert!(leased.is_err(), "the gate is closed: {leased:?}");
    let refused = a.publish(6).await.expect_err("its term is over");
    assert!(matches!(refused, PublishError::Unavailable(Unavailable::Deposed(_))), "{refused}");
    assert!(held.ack().await.is_err(), "an ack fails too");
    a.machine.deposed(a.now());
    a.run().await;
    assert_eq!((a.holds(), a.leader().as_deref()), (None, Some("b")));
    assert_eq!((database.commit(), stored(b.bus()).await), before, "it wrote nothing");
    pass(&clock, 10_000, &mut [&mut a, &mut b]).await;
    assert_eq!((a.holds(), b.holds()), (None, Some(2)));
    check_fences(&database);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_leader_is_deposed_by_its_failed_renewal_too() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    a.run().await;
    pass(&clock, 20_000, &mut [&mut b]).await;
    let before = database.commit();
    a.run().await;
    assert_eq!((a.holds(), a.leading.is_none()), (None, true));
    assert_eq!(database.commit(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_response_costs_neither_the_lease_nor_a_term() {
    for fault in [LeaseFault::AnswerLost, LeaseFault::RequestLost] {
        let (database, clock) = (Database::new(), ManualClock::new(1_000));
        let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
        // The faults affect the take, then every second renewal.
        for _ in 0..10 {
            a.store.fault_of_next_write(Some(fault));
            a.store.fault_of_next_write(None);
        }
        pass(&clock, 1_000, &mut [&mut a]).await;
        pass(&clock, 30_000, &mut [&mut a, &mut b]).await;
        assert_eq!((a.holds(), b.holds()), (Some(1), None), "{fault:?}");
        assert!(a.leading.as_ref().is_some_and(|it| it.gate.is_open()), "{fault:?}");
        assert_eq!(database.term(), 1, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_loses_its_leader_leads_within_seven_seconds() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    pass(&clock, 9_000, &mut [&mut a, &mut b]).await;
    assert_eq!(b.leader().as_deref(), Some("a"));
    a.publish(1).await.expect("publishes");
    a.kill();
    pass(&clock, 7_000, &mut [&mut b]).await;
    assert_eq!(b.holds(), Some(2));
    assert_eq!(stored(b.bus()).await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_wall_clock_change_nothing() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000_000_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    for hours in [0, 10, -20, 5, -300, 300] {
        clock.set_wall_ms(clock.wall_ms() + hours * 3_600_000);
        pass(&clock, 3_000, &mut [&mut a, &mut b]).await;
        assert_eq!((a.holds(), b.holds()), (Some(1), None));
        assert!(a.leading.as_ref().is_some_and(|it| it.gate.is_open()));
    }
    a.kill();
    pass(&clock, 3_500, &mut [&mut b]).await;
    clock.set_wall_ms(clock.wall_ms() + 3_600_000);
    pass(&clock, 500, &mut [&mut b]).await;
    assert_eq!(b.holds(), None, "a step of the wall clock by an hour does not count as six seconds");
    clock.set_wall_ms(0);
    pass(&clock, 2_500, &mut [&mut b]).await;
    assert_eq!(b.holds(), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_challengers_exactly_one_leads() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b, mut c) = (
        Process::new("a", &database, &clock),
        Process::new("b", &database, &clock),
        Process::new("c", &database, &clock),
    );
    pass(&clock, 1_000, &mut [&mut a, &mut b, &mut c]).await;
    a.kill();
    clock.advance_ms(20_000);
    // Both read the same revision before one of them writes.
    for _ in 0..2 {
        b.lease_step().await;
        c.lease_step().await;
    }
    pass(&clock, 1_000, &mut [&mut b, &mut c]).await;
    let leading = [&b, &c].into_iter().filter(|it| it.leading.is_some()).count();
    assert_eq!((leading, database.term()), (1, 2));
    pass(&clock, 20_000, &mut [&mut b, &mut c]).await;
    assert_eq!(database.term(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_of_an_older_term_cannot_be_opened() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    a.lease_step().await;
    a.lease_step().await;
    assert_eq!((a.holds(), a.leading.is_none()), (Some(1), true), "it was paused before its fence");
    pass(&clock, 7_000, &mut [&mut b]).await;
    assert_eq!(b.holds(), Some(2));
    let refused = a.open().await.expect_err("a newer term has begun");
    assert!(matches!(refused, OpenError::Led { .. }), "{refused}");
    let same_term = b.open_as(Takeover { term: 2, was_released: false }).await;
    assert!(matches!(same_term, Err(OpenError::Led { .. })), "a term has one writer");
    check_fences(&database);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_release_the_next_process_leads_without_waiting_six_seconds() {
    let (database, clock) = (Database::new(), ManualClock::new(1_000));
    let (mut a, mut b) = (Process::new("a", &database, &clock), Process::new("b", &database, &clock));
    pass(&clock, 3_000, &mut [&mut a, &mut b]).await;
    a.publish(1).await.expect("publishes");
    a.leading.take().expect("it leads").bus.close().await.expect("closes");
    a.machine.stop(a.now());
    while a.lease_step().await {}
    let record = a.store.lease().read().await.expect("reads").expect("is there");
    assert!(record.is_released() && record.term == 1);
    pass(&clock, 300, &mut [&mut b]).await;
    assert_eq!(b.holds(), Some(2));
    assert_eq!(stored(b.bus()).await, [1]);
}
