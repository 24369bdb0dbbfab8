//! A full disk whose reserve is used up: every call resolves, and cleaning makes room by itself.

use crate::rig::{Rig, poll};
use prombus::{Backend as _, Delivery, GroupError, Problem, Start, Subscription, Unavailable};
use prombus_protocol::ErrorCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

/// Publishes until the disk is full.
fn fill(rig: &Rig) {
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 60 * 1024));
    let filler = "f".repeat(1_000);
    for _ in 0..1_000 {
        if rig.done(rig.bus.publish("filler", filler.as_str()).send()).is_err() {
            return;
        }
    }
    panic!("the disk is never full");
}

/// The outcome of an ack, which must resolve.
fn ack(rig: &Rig, delivery: &Delivery) -> Result<(), Unavailable> {
    let mut acking = delivery.ack();
    for _ in 0..20 {
        if let Poll::Ready(answer) = poll(&mut acking) {
            return answer.map(|_| ());
        }
        rig.pass(5);
        rig.commit();
    }
    panic!("an ack does not resolve");
}

/// A disk that is full of events, and a group that holds many unacked deliveries.
fn full(seed: u64) -> (Rig, Subscription, Vec<Delivery>) {
    let rig = Rig::new(seed);
    rig.publish_numbers("orders", 900);
    let subscribe = rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(1_000);
    let mut orders = rig.join(subscribe.ack_timeout(Duration::from_secs(3_000)));
    let mut deliveries = Vec::new();
    while deliveries.len() < 900 {
        let before = deliveries.len();
        deliveries.extend(rig.all(&mut orders));
        assert!(deliveries.len() > before, "{before} of 900 came");
    }
    fill(&rig);
    (rig, orders, deliveries)
}

/// Acks until one is refused; returns how many were accepted.
fn use_up_reserve(rig: &Rig, deliveries: &[Delivery]) -> usize {
    for (at, delivery) in deliveries.iter().enumerate() {
        match ack(rig, delivery) {
            Ok(()) => {}
            Err(Unavailable::StorageFull) => return at,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the reserve is never used up");
}

#[test]
fn group_calls_fail_with_storage_full_when_the_reserve_is_used_up() {
    let (rig, orders, deliveries) = full(1);
    assert!(rig.backend.problems().contains(&Problem::StorageFull));
    let acked = use_up_reserve(&rig, &deliveries);
    assert!(acked > 50, "{acked}");
    assert_eq!(rig.backend.health(), Ok(()), "a full disk is not the end of writing");
    assert!(rig.backend.problems().contains(&Problem::StorageFull) && rig.backend.figures().store.is_full);
    assert_eq!(Unavailable::StorageFull.code(), ErrorCode::StorageFull);

    let nacked = rig.done(deliveries[acked + 1].nack("boom"));
    assert_eq!(nacked.expect_err("no room"), Unavailable::StorageFull);
    let sought = rig.done(Box::pin(rig.bus.seek("orders", "billing", Start::Earliest)));
    assert_eq!(sought.expect_err("no room"), GroupError::StorageFull);
    let mut joining = rig.bus.subscribe("orders", "shipping").into_future();
    let joined = rig.done(&mut joining);
    assert!(matches!(joined, Err(GroupError::StorageFull)));
    let deleted = rig.done(Box::pin(rig.bus.delete_group("orders", "billing")));
    assert_eq!(deleted.expect_err("no room"), GroupError::StorageFull);

    // When there is room, the refused changes are written after all.
    rig.disk.set_capacity(None);
    rig.commit();
    ack(&rig, &deliveries[acked + 2]).expect("there is room");
    assert!(!rig.backend.problems().contains(&Problem::StorageFull));
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), acked as u64 + 1, "the refused ack was written later");
        after.stop();
    }
    drop((orders, deliveries));
    rig.stop();
}

/// No topic has retention or compaction here: only records of the group are obsolete.
#[test]
fn a_full_disk_is_cleaned_of_old_group_records_until_acks_are_durable_again() {
    let (rig, orders, deliveries) = full(2);
    let mut refused = 0;
    let mut at = 0;
    while at < deliveries.len() {
        match ack(&rig, &deliveries[at]) {
            Ok(()) => at += 1,
            Err(Unavailable::StorageFull) => {
                refused += 1;
                assert!(refused < 100, "nothing was freed: {at} acks are durable");
                // The refused ack was applied, and becomes durable with the others.
                at += 1;
                rig.pass(5_000);
                crate::rig::run_maintenance(&rig.backend);
                rig.commit();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0, "the reserve was never used up");
    rig.pass(200);
    rig.commit();
    rig.disk.set_capacity(None);
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 900);
        assert_eq!(after.payloads("orders").len(), 900);
        after.stop();
    }
    drop((orders, deliveries));
    rig.stop();
}

#[test]
fn a_bus_with_a_full_disk_closes() {
    let (rig, orders, deliveries) = full(3);
    let acked = use_up_reserve(&rig, &deliveries);
    drop((orders, deliveries));
    // The close must not wait indefinitely for room.
    let rig = rig.restart();
    assert!(rig.floor("orders", "billing") >= acked as u64);
    assert_eq!(rig.payloads("orders").len(), 900);
    rig.stop();
}

/// Counts warnings and errors in the log output.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn dead_letters_that_wait_for_room_are_logged_once_a_minute() {
    let rig = Rig::new(4);
    rig.publish_numbers("orders", 200);
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing").from_earliest().max_attempts(1));
    let deliveries = rig.all(&mut orders);
    fill(&rig);
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
        deliveries.iter().for_each(|delivery| drop(delivery.nack("boom")));
        for _ in 0..150 {
            rig.pass(1_000);
            rig.commit();
        }
    });
    let lines = count.load(Ordering::Relaxed);
    assert!((1..10).contains(&lines), "{lines} lines in 150 seconds");
    rig.disk.set_capacity(None);
    for _ in 0..60 {
        rig.commit();
        rig.pass(1_000);
    }
    assert_eq!(rig.letters("orders").len(), deliveries.len(), "all of them are written when there is room");
    rig.stop();
}
