//! 3. At least once. 4. Never skipped. 5. One member at a time. 6. In order.

use crate::rig::{Rig, poll, seqs};
use prombus::{PublishOptions, RedeliveryReason};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn guarantee_3_at_least_once_when_the_member_is_lost() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut lost = rig.subscribe("orders", "billing");
    let mut other = rig.subscribe("orders", "billing");
    rig.next(&mut lost).expect("there is an event");
    assert!(rig.next(&mut other).is_none());
    drop(lost);
    rig.commit();
    let again = rig.next(&mut other).expect("it comes at once: no time has passed");
    assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::MemberLost)));
    rig.stop();
}

#[test]
fn guarantee_3_at_least_once_when_the_member_is_silent() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    rig.next(&mut orders).expect("there is an event");
    rig.pass(29_999);
    rig.commit();
    assert!(rig.next(&mut orders).is_none(), "the lease runs for 30 s");
    rig.pass(1);
    rig.commit();
    let again = rig.next(&mut orders).expect("the lease is over");
    assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::LeaseExpired)));
    rig.stop();
}

#[test]
fn guarantee_3_at_least_once_when_it_is_nacked() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let mut delivery = rig.next(&mut orders).expect("there is an event");
    for (attempt, wait) in [(2, 100), (3, 200), (4, 400), (5, 800)] {
        rig.done(delivery.nack("boom")).expect("nacks");
        rig.pass(wait * 4 / 5 - 1);
        assert!(rig.next(&mut orders).is_none(), "attempt {attempt} comes too early");
        rig.pass(wait * 2 / 5 + 1);
        delivery = rig.redelivered(&mut orders).expect("the backoff is over");
        assert_eq!((delivery.attempt(), delivery.reason()), (attempt, Some(RedeliveryReason::Nacked)));
    }
    rig.stop();
}

/// Events in flight at a power cut are redelivered, every time, until they are settled.
#[test]
fn guarantee_3_at_least_once_across_power_cuts() {
    let mut rig = Rig::new(1);
    rig.publish_numbers("orders", 4);
    for settled in 1..=4 {
        let mut orders = rig.subscribe("orders", "billing");
        let all = rig.all(&mut orders);
        assert_eq!(all.len(), 5 - settled, "unsettled events are delivered");
        rig.ack(all.last().expect("one at least"));
        rig = rig.power_cut();
    }
    assert!(rig.all(&mut rig.subscribe("orders", "billing")).is_empty());
    rig.stop();
}

/// The failed attempt is durable before the event is redelivered: attempts never fall.
#[test]
fn guarantee_3_at_least_once_with_attempts_that_never_fall() {
    let mut rig = Rig::new(1);
    rig.publish("orders", "deadly");
    for attempt in 1..=4 {
        let mut orders = rig.subscribe("orders", "billing");
        let delivery = rig.redelivered(&mut orders).expect("it is not settled");
        assert_eq!(delivery.attempt(), attempt);
        rig.done(delivery.nack_after(Duration::ZERO, "boom")).expect("nacks");
        rig = rig.power_cut();
    }
    rig.stop();
}

/// Also if the nack is not awaited, the event is not redelivered before its failed attempt is durable.
#[test]
fn guarantee_3_at_least_once_but_not_before_the_failure_is_durable() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let delivery = rig.next(&mut orders).expect("there is an event");
    drop(delivery.nack_after(Duration::ZERO, "boom"));
    rig.pass(100);
    assert!(rig.next(&mut orders).is_none(), "its failure is not durable yet");
    rig.commit();
    assert_eq!(rig.redelivered(&mut orders).expect("it is due").attempt(), 2);
    for after in rig.after_power_cuts() {
        let again = after.redelivered(&mut after.subscribe("orders", "billing")).expect("it is not settled");
        assert!(again.attempt() >= 2, "the attempts have fallen");
        after.stop();
    }
    rig.stop();
}

fn check_acks_above_an_unsettled_event(restart: impl Fn(Rig) -> Rig) {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 6);
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    for seq in [2, 4, 5] {
        rig.ack(&all[seq - 1]);
        assert_eq!(rig.floor("orders", "billing"), 0, "the floor moved over an unsettled event");
    }
    let rig = restart(rig);
    let info = rig.info("orders", "billing");
    assert_eq!((info.topics[0].floor, info.topics[0].settled_above, info.lag), (0, 3, 3));
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    assert_eq!(seqs(&all).iter().copied().collect::<std::collections::BTreeSet<_>>(), [1, 3, 6].into());
    for (seq, floor) in [(3, 0), (1, 5), (6, 6)] {
        let delivery = all.iter().find(|it| it.seq() == seq).expect("it was delivered");
        rig.ack(delivery);
        assert_eq!(rig.floor("orders", "billing"), floor);
    }
    rig.stop();
}

#[test]
fn guarantee_4_never_skipped_acks_above_an_unsettled_event_survive_a_power_cut() {
    check_acks_above_an_unsettled_event(Rig::power_cut);
}

#[test]
fn guarantee_4_never_skipped_acks_above_an_unsettled_event_survive_a_close() {
    check_acks_above_an_unsettled_event(Rig::restart);
}

/// The log rolls segments and writes checkpoints in between, so that settled events are read from a checkpoint.
#[test]
fn guarantee_4_never_skipped_acks_above_an_unsettled_event_survive_checkpoints() {
    check_acks_above_an_unsettled_event(|rig| {
        let text = "x".repeat(1_000);
        for _ in 0..60 {
            rig.publish("other", &text);
        }
        assert!(rig.disk.names().iter().filter(|name| name.ends_with(".ckpt")).count() >= 2);
        rig.power_cut()
    });
}

/// Filters, nacks and dead letters in between do not move the floor over an event that a member holds.
#[test]
fn guarantee_4_never_skipped_whatever_happens_to_its_neighbours() {
    let rig = Rig::new(1);
    rig.publish_numbers("orders", 5);
    let held = |event: &prombus::EventView<'_>| event.seq() != 3;
    let group = rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1).filter(held);
    let mut orders = rig.join(group);
    let all = rig.all(&mut orders);
    assert_eq!(seqs(&all), [1, 2, 4, 5]);
    rig.done(all[2].nack("boom")).expect("nacks");
    rig.ack(&all[3]);
    rig.commit();
    assert_eq!((rig.floor("orders", "billing"), rig.letters("orders").len()), (0, 1));
    rig.ack(&all[0]);
    assert_eq!(rig.floor("orders", "billing"), 1);
    rig.ack(&all[1]);
    assert_eq!(rig.floor("orders", "billing"), 5);
    rig.stop();
}

#[test]
fn guarantee_5_one_member_at_a_time_until_the_lease_ends() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut one = rig.subscribe("orders", "billing");
    let mut other = rig.subscribe("orders", "billing");
    let first = rig.next(&mut one).expect("there is an event");
    rig.pass(20_000);
    assert!(first.extend(Duration::from_secs(30)));
    rig.pass(29_999);
    rig.commit();
    assert!(rig.next(&mut other).is_none(), "two members have one event");
    rig.pass(1);
    rig.commit();
    let second = rig.next(&mut other).expect("the lease is over");
    assert!(rig.done(first.ack()).expect("succeeds").stale);
    assert!(rig.done(first.nack("boom")).expect("succeeds").stale);
    assert_eq!((rig.floor("orders", "billing"), rig.info("orders", "billing").in_flight), (0, 1));
    rig.ack(&second);
    assert_eq!(rig.floor("orders", "billing"), 1);
    rig.stop();
}

#[test]
fn guarantee_5_one_member_at_a_time_a_late_ack_applies_while_no_newer_member_holds_the_event() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let late = rig.next(&mut orders).expect("there is an event");
    rig.pass(60_000);
    rig.commit();
    assert_eq!(rig.info("orders", "billing").in_flight, 0);
    rig.ack(&late);
    assert!(rig.next(&mut orders).is_none());
    assert_eq!(rig.floor("orders", "billing"), 1);
    rig.stop();
}

#[test]
fn guarantee_5_one_member_at_a_time_a_lease_ends_at_a_restart() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    rig.next(&mut orders).expect("there is an event");
    let rig = rig.power_cut();
    assert!(
        rig.next(&mut rig.subscribe("orders", "billing")).is_some(),
        "it must not wait for a lease of before the restart"
    );
    rig.stop();
}

/// With several publishers and batches, from files and from the tail, events are delivered as 1, 2, 3 …
#[test]
fn guarantee_6_in_order_from_files_and_from_memory() {
    let rig = Rig::new(1);
    let mut live = rig.subscribe("orders", "live");
    let mut came: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let text = "x".repeat(300);
    for round in 0..60 {
        let mut batch = rig.bus.batch();
        for name in ["orders", "other", "orders"] {
            batch.push(name, &text, &PublishOptions::default()).expect("a good event");
        }
        let batch = rig.bus.publish_batch(batch);
        let single = rig.bus.publish("orders", &text).send();
        rig.done(batch).expect("publishes");
        rig.done(single).expect("publishes");
        if round % 5 == 0 {
            came.entry("live").or_default().extend(seqs(&rig.all(&mut live)));
        }
    }
    came.entry("live").or_default().extend(seqs(&rig.all(&mut live)));
    let mut late = rig.subscribe("orders", "late");
    came.insert("late", seqs(&rig.all(&mut late)));
    let rig = rig.restart();
    came.insert("restarted", seqs(&rig.all(&mut rig.subscribe("orders", "restarted"))));
    for (who, seqs) in came {
        assert_eq!(seqs, (1..=180).collect::<Vec<_>>(), "{who}");
    }
    rig.stop();
}

/// Publishes keep the order of calls even if they find the queue full.
#[test]
fn guarantee_6_in_order_of_calls_also_when_the_queue_is_full() {
    let rig = Rig::new(1);
    let text = "x".repeat(900);
    let mut publishing: Vec<_> =
        (0..20).map(|at| rig.bus.publish("orders", &format!("{at} {text}")).send()).collect();
    rig.commit();
    // There is room again, but the waiting publishes have not been polled yet.
    publishing.push(rig.bus.publish("orders", &format!("20 {text}")).send());
    let seqs: Vec<u64> = publishing.into_iter().map(|it| rig.done(it).expect("publishes").seq).collect();
    assert_eq!(seqs, (1..=21).collect::<Vec<_>>());
    rig.stop();
}

/// Two members that pull in turn each see rising seqs, and together all events.
#[test]
fn guarantee_6_in_order_for_each_member() {
    let rig = Rig::new(1);
    let member = || rig.join(rig.bus.subscribe("orders", "billing").from_earliest().batch_size(3));
    let (mut one, mut other) = (member(), member());
    rig.publish_numbers("orders", 50);
    let mut came = [Vec::new(), Vec::new()];
    // More rounds than needed: a member that gets no more events must make the test fail, not hang.
    for _ in 0..100 {
        came[0].extend(rig.next(&mut one).map(|it| it.seq()));
        came[1].extend(rig.next(&mut other).map(|it| it.seq()));
    }
    assert!(came.iter().all(|seqs| seqs.is_sorted() && !seqs.is_empty()), "{came:?}");
    assert_eq!(came[0].len() + came[1].len(), 50, "{came:?}");
    assert!(poll(&mut Box::pin(one.next())).is_pending());
    rig.stop();
}
