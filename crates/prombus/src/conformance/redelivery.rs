//! Rules about nacks, leases that expire, members that are lost or leave, late acks, and extensions.

use super::probe::{
    ack, floor, group_info, next, nothing, publish, publish_numbers, soon, subscribe, take, texts,
    until_nothing_in_flight,
};
use crate::{Bus, RedeliveryReason, Subscription};
use std::time::{Duration, Instant};

/// Long enough that a slow machine handles a delivery before its lease expires, short enough for a test.
const LEASE: Duration = Duration::from_millis(80);

async fn with_lease(bus: &Bus) -> Subscription {
    bus.subscribe("orders", "billing").from_earliest().ack_timeout(LEASE).await.expect("subscribes")
}

/// A nacked event is redelivered after a growing backoff, with the next attempt and the reason.
pub async fn a_nack_redelivers_after_a_backoff(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let mut delivery = next(&mut orders).await;
    // The backoff is 100 ms, then 200 ms, each with a jitter of ±20 %; the clock is read in whole milliseconds.
    for (attempt, wait_ms) in [(2, 79), (3, 159)] {
        let nacked = Instant::now();
        let settled = soon("the nack", delivery.nack("boom")).await.expect("nacks");
        assert!(!settled.stale);
        delivery = next(&mut orders).await;
        let waited = nacked.elapsed();
        assert!(waited >= Duration::from_millis(wait_ms), "attempt {attempt} came after {waited:?}");
        assert_eq!((delivery.seq(), delivery.attempt()), (1, attempt));
        assert_eq!(delivery.reason(), Some(RedeliveryReason::Nacked));
    }
    ack(&delivery).await;
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
}

/// A nack may set the delay of the redelivery, zero included.
pub async fn nack_after_waits_for_the_given_time(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    let nacked = Instant::now();
    delivery.nack_after(Duration::from_millis(150), "later").await.expect("nacks");
    let again = next(&mut orders).await;
    assert!(nacked.elapsed() >= Duration::from_millis(149), "again after {:?}", nacked.elapsed());
    assert_eq!((again.attempt(), again.reason()), (2, Some(RedeliveryReason::Nacked)));
    again.nack_after(Duration::ZERO, "now").await.expect("nacks");
    assert_eq!(next(&mut orders).await.attempt(), 3);
}

/// The attempt after a nack contains the reason of the nack, cut to 256 bytes; later attempts do not.
pub async fn the_reason_of_a_nack_comes_with_the_next_attempt(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let lease = Duration::from_millis(60);
    let orders = bus.subscribe("orders", "billing").from_earliest().ack_timeout(lease);
    let mut orders = orders.await.expect("subscribes");
    let first = next(&mut orders).await;
    assert_eq!(first.last_error(), None);
    first.nack_after(Duration::ZERO, &"é".repeat(200)).await.expect("nacks");
    let second = next(&mut orders).await;
    assert_eq!(second.last_error(), Some("é".repeat(128).as_str()));
    assert_eq!(second.context().last_error.as_deref(), second.last_error());
    // The lease of the second attempt expires, which sets no error text.
    let third = next(&mut orders).await;
    assert_eq!((third.attempt(), third.last_error()), (3, None));
    third.nack_after(Duration::ZERO, "").await.expect("nacks");
    let fourth = next(&mut orders).await;
    assert_eq!((fourth.attempt(), fourth.last_error()), (4, None));
}

/// A nacked event does not delay others, and is delivered before fresh ones when it is due.
pub async fn a_nacked_event_does_not_delay_others(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().batch_size(1);
    let mut orders = orders.await.expect("subscribes");
    let first = next(&mut orders).await;
    first.nack_after(Duration::from_millis(100), "later").await.expect("nacks");
    let second = next(&mut orders).await;
    assert_eq!(second.seq(), 2);
    tokio::time::sleep(Duration::from_millis(130)).await;
    let redelivered = next(&mut orders).await;
    assert_eq!((redelivered.seq(), redelivered.attempt()), (1, 2));
    assert_eq!(next(&mut orders).await.seq(), 3);
}

/// An event whose lease expires is redelivered.
pub async fn an_expired_lease_redelivers(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = with_lease(&bus).await;
    let began = Instant::now();
    next(&mut orders).await;
    let again = next(&mut orders).await;
    assert!(began.elapsed() >= LEASE - Duration::from_millis(1), "again after {:?}", began.elapsed());
    assert_eq!((again.seq(), again.attempt()), (1, 2));
    assert_eq!(again.reason(), Some(RedeliveryReason::LeaseExpired));
    ack(&again).await;
}

/// While a lease runs, no other member gets the event.
pub async fn an_event_is_leased_to_one_member_at_a_time(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut one = subscribe(&bus, "orders", "billing").await;
    let mut other = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut one).await;
    nothing(&mut other).await;
    nothing(&mut one).await;
    ack(&delivery).await;
}

/// Deliveries of a lost member go to other members at once, and the attempt counts.
pub async fn events_of_a_lost_member_go_to_another_at_once(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut lost = subscribe(&bus, "orders", "billing").await;
    let mut other = subscribe(&bus, "orders", "billing").await;
    take(&mut lost, 3).await;
    // The lease would run for 30 s.
    drop(lost);
    let again = take(&mut other, 3).await;
    assert_eq!(texts(&again), ["1", "2", "3"]);
    for delivery in &again {
        assert_eq!((delivery.attempt(), delivery.reason()), (2, Some(RedeliveryReason::MemberLost)));
    }
}

/// Events that were leased to a lost member, but were never handed to its program, have not used an attempt.
pub async fn events_that_a_lost_member_never_saw_count_no_attempt(bus: Bus) {
    publish_numbers(&bus, "orders", 7).await;
    let mut lost = subscribe(&bus, "orders", "billing").await;
    // The pulls of a stream take one event, then two, then four: three of the last four are not handed out.
    take(&mut lost, 4).await;
    assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 7);
    drop(lost);
    let mut other = subscribe(&bus, "orders", "billing").await;
    let mut attempts: Vec<_> = take(&mut other, 7).await.iter().map(|it| (it.seq(), it.attempt())).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [(1, 2), (2, 2), (3, 2), (4, 2), (5, 1), (6, 1), (7, 1)]);
}

/// Deliveries of a member that leaves go to other members at once, and the attempt does not count.
pub async fn a_member_that_leaves_returns_its_events_at_once_without_an_attempt(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut leaving = subscribe(&bus, "orders", "billing").await;
    let mut other = subscribe(&bus, "orders", "billing").await;
    let theirs = take(&mut leaving, 3).await;
    ack(&theirs[1]).await;
    soon("the end of the membership", leaving.unsubscribe()).await.expect("leaves");
    let again = take(&mut other, 2).await;
    assert_eq!(texts(&again), ["1", "3"]);
    for delivery in &again {
        assert_eq!((delivery.attempt(), delivery.reason()), (1, None));
    }
    nothing(&mut other).await;
}

/// An ack after the lease expired applies if no newer member holds the event.
pub async fn a_late_ack_applies_if_no_newer_member_holds_the_event(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = with_lease(&bus).await;
    let delivery = next(&mut orders).await;
    until_nothing_in_flight(&bus, "orders", "billing").await;
    ack(&delivery).await;
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
    nothing(&mut orders).await;
}

/// An ack overrides an earlier nack of the same member, while no newer member holds the event.
pub async fn an_ack_after_a_nack_applies_while_no_newer_member_holds_the_event(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    delivery.nack("boom").await.expect("nacks");
    ack(&delivery).await;
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
    tokio::time::sleep(Duration::from_millis(80)).await;
    nothing(&mut orders).await;
}

/// Acks and nacks of a member are stale if a newer member holds the event.
pub async fn an_ack_after_redelivery_to_another_member_is_stale(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut one = with_lease(&bus).await;
    let late = next(&mut one).await;
    until_nothing_in_flight(&bus, "orders", "billing").await;
    let mut other = subscribe(&bus, "orders", "billing").await;
    let newer = next(&mut other).await;
    assert_eq!(newer.attempt(), 2);
    assert!(late.ack().await.expect("succeeds").stale);
    assert!(late.nack("boom").await.expect("succeeds").stale);
    assert!(!late.extend(Duration::from_secs(5)));
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.topics[0].floor, info.in_flight), (0, 1));
    ack(&newer).await;
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
}

/// The second ack of an event is stale, and so is a nack of it.
pub async fn a_second_ack_is_stale(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    ack(&delivery).await;
    assert!(delivery.ack().await.expect("succeeds").stale);
    assert!(delivery.nack("boom").await.expect("succeeds").stale);
    assert_eq!(group_info(&bus, "orders", "billing").await.counters.stale, 2);
    nothing(&mut orders).await;
}

/// An extension keeps the lease: no other member gets the event meanwhile, and the ack applies.
pub async fn an_extension_keeps_the_lease(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut one = with_lease(&bus).await;
    let mut other = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut one).await;
    assert!(delivery.extend(Duration::from_secs(5)));
    tokio::time::sleep(LEASE + Duration::from_millis(40)).await;
    nothing(&mut other).await;
    ack(&delivery).await;
}

/// An extension is at least a second, counted from now, and may shorten a lease.
pub async fn an_extension_is_at_least_a_second(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    assert!(delivery.extend(Duration::from_millis(1)));
    let ends_in_ms = group_info(&bus, "orders", "billing").await.leases[0].ends_in_ms;
    assert!((200..=1_000).contains(&ends_in_ms), "{ends_in_ms} ms");
}

/// An expired lease cannot be extended.
pub async fn an_expired_lease_cannot_be_extended(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = with_lease(&bus).await;
    let delivery = next(&mut orders).await;
    until_nothing_in_flight(&bus, "orders", "billing").await;
    assert!(!delivery.extend(Duration::from_secs(5)));
    assert_eq!(next(&mut orders).await.attempt(), 2);
}

/// The lease of a settled event cannot be extended.
pub async fn the_lease_of_a_settled_event_cannot_be_extended(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    ack(&delivery).await;
    assert!(!delivery.extend(Duration::from_secs(5)));
}
