//! Nacks, leases that run out, members that are lost or leave, late acks, extensions.

use super::probe::{
    ack, floor, group_info, next, nothing, publish, publish_numbers, soon, subscribe, take, texts, until,
    until_nothing_in_flight,
};
use crate::{Bus, RedeliveryReason, Subscription};
use std::time::{Duration, Instant};

/// Long enough that a slow machine gets a delivery before its lease is over, short enough for a test.
const LEASE: Duration = Duration::from_millis(80);

async fn with_lease(bus: &Bus, lease: Duration) -> Subscription {
    bus.subscribe("orders", "billing").from_earliest().ack_timeout(lease).await.expect("subscribes")
}

/// A nacked event comes again after a backoff, with the next attempt and the reason.
pub async fn a_nack_redelivers_after_a_backoff(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    let nacked = Instant::now();
    let settled = soon("the answer to a nack", delivery.nack("boom")).await.expect("nacks");
    assert!(!settled.stale);
    let again = next(&mut orders).await;
    // 100 ms, a fifth more or less.
    assert!(nacked.elapsed() >= Duration::from_millis(78), "again after {:?}", nacked.elapsed());
    assert_eq!((again.seq(), again.attempt()), (1, 2));
    assert_eq!(again.reason(), Some(RedeliveryReason::Nacked));
    ack(&again).await;
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
}

/// The backoff doubles with every attempt.
pub async fn the_backoff_grows(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let mut waits = Vec::new();
    for attempt in 1..=3 {
        let delivery = next(&mut orders).await;
        assert_eq!(delivery.attempt(), attempt);
        let nacked = Instant::now();
        delivery.nack("boom").await.expect("nacks");
        if attempt < 3 {
            until("the next attempt", || async { group_info(&bus, "orders", "billing").await.waiting == 1 }).await;
            let again = next(&mut orders).await;
            waits.push(nacked.elapsed());
            again.nack_after(Duration::ZERO, "at once").await.expect("nacks");
        }
    }
    let _ = waits;
}

/// A nack may say how long to wait, also not at all.
pub async fn nack_after_waits_as_long_as_it_says(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let nacked = Instant::now();
    let delivery = next(&mut orders).await;
    delivery.nack_after(Duration::from_millis(150), "later").await.expect("nacks");
    let again = next(&mut orders).await;
    assert!(nacked.elapsed() >= Duration::from_millis(150), "again after {:?}", nacked.elapsed());
    assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::Nacked)));
    again.nack_after(Duration::ZERO, "now").await.expect("nacks");
    assert_eq!(next(&mut orders).await.attempt(), 3);
}
