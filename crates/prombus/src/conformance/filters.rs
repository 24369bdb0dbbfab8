//! Rules about filters: dropped events are settled, and the group continues.

use super::probe::{
    ack, group_info, next, nothing, publish, publish_numbers, subscribe, take, texts, until_floor,
};
use crate::{Bus, GroupError, Subscribe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

async fn publish_mixed(bus: &Bus) {
    for (number, key) in [(1, "x"), (2, "y"), (3, "x"), (4, "y")] {
        let event = bus.publish("orders", &number).key(key).tag(format!("#{key}")).header("kind", key);
        event.await.expect("publishes");
    }
}

/// Checks a filter that must pass only the events 2 and 4: the others are settled, so the floor moves over them.
async fn check_filter(bus: &Bus, filtered: Subscribe) {
    publish_mixed(bus).await;
    let mut orders = filtered.from_earliest().await.expect("subscribes");
    let wanted = take(&mut orders, 2).await;
    assert_eq!(texts(&wanted), ["2", "4"]);
    until_floor(bus, "orders", "billing", 1).await;
    ack(&wanted[0]).await;
    until_floor(bus, "orders", "billing", 3).await;
    ack(&wanted[1]).await;
    until_floor(bus, "orders", "billing", 4).await;
    publish_mixed(bus).await;
    assert_eq!(next(&mut orders).await.seq(), 6, "later events are filtered too");
    assert_eq!(group_info(bus, "orders", "billing").await.counters.passed_over, 4);
}

/// A filter by key delivers only events with that key and settles the others.
pub async fn a_filter_by_key_settles_the_others(bus: Bus) {
    check_filter(&bus, bus.subscribe("orders", "billing").key("y")).await;
}

/// A filter by tag delivers only events with that tag and settles the others.
pub async fn a_filter_by_tag_settles_the_others(bus: Bus) {
    check_filter(&bus, bus.subscribe("orders", "billing").tag("#y")).await;
}

/// A filter by header delivers only events with that header and settles the others.
pub async fn a_filter_by_header_settles_the_others(bus: Bus) {
    check_filter(&bus, bus.subscribe("orders", "billing").header("kind", "y")).await;
}

/// A filter by closure delivers only events for which the closure returns true, and settles the others.
pub async fn a_filter_by_closure_settles_the_others(bus: Bus) {
    let filter =
        |event: &crate::EventView<'_>| event.key() == Some("y") && event.topic().as_str() == "orders";
    check_filter(&bus, bus.subscribe("orders", "billing").filter(filter)).await;
}

/// An event must match all parts of a filter.
pub async fn all_parts_of_a_filter_must_match(bus: Bus) {
    for (number, key, tag) in [(1, "x", "#a"), (2, "x", "#b"), (3, "y", "#b"), (4, "x", "#b")] {
        bus.publish("orders", &number).key(key).tag(tag).await.expect("publishes");
    }
    let orders = bus.subscribe("orders", "billing").key("x").tag("#b").from_earliest();
    let mut orders = orders.await.expect("subscribes");
    assert_eq!(texts(&take(&mut orders, 2).await), ["2", "4"]);
    nothing(&mut orders).await;
}

/// A topic without any matching event is settled completely, without a delivery.
pub async fn a_filter_that_drops_everything_does_not_hold_the_floor(bus: Bus) {
    publish_numbers(&bus, "orders", 500).await;
    let mut orders =
        bus.subscribe("orders", "billing").key("none").from_earliest().await.expect("subscribes");
    nothing(&mut orders).await;
    until_floor(&bus, "orders", "billing", 500).await;
    assert_eq!(group_info(&bus, "orders", "billing").await.counters.delivered, 0);
}

/// A member's closure filters only the events that this member pulls, not those that other members of its group pull.
pub async fn a_closure_applies_to_its_own_member_only(bus: Bus) {
    let none = bus.subscribe("orders", "billing").from_earliest().filter(|_| false);
    let mut none = none.await.expect("subscribes");
    let mut all = subscribe(&bus, "orders", "billing").await;
    publish(&bus, "orders", 1).await;
    assert_eq!(next(&mut all).await.seq(), 1);
    publish(&bus, "orders", 2).await;
    nothing(&mut none).await;
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.counters.passed_over, info.topics[0].settled_above), (1, 1));
}

/// An event for which the closure panics is delivered, so that it is not lost.
pub async fn a_closure_that_panics_loses_no_event(bus: Bus) {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let orders = bus.subscribe("orders", "billing").from_earliest().filter(move |event| {
        counter.fetch_add(1, Ordering::SeqCst);
        assert!(event.seq() != 1, "the test's filter panics on purpose");
        true
    });
    let mut orders = orders.await.expect("subscribes");
    publish_numbers(&bus, "orders", 2).await;
    assert_eq!(texts(&take(&mut orders, 2).await), ["1", "2"]);
    assert!(calls.load(Ordering::SeqCst) >= 2);
}

/// All members of a group have the same filter.
pub async fn a_member_with_another_filter_gets_a_conflict(bus: Bus) {
    let group = || bus.subscribe("orders", "billing");
    group().key("x").await.expect("subscribes");
    for other in [group(), group().key("y"), group().tag("x"), group().key("x").tag("t")] {
        let refused = other.await.expect_err("another filter");
        assert!(matches!(refused, GroupError::Conflict { .. }), "{refused}");
        assert!(refused.to_string().contains("filter"), "{refused}");
    }
    assert!(!group().key("x").await.expect("the same filter").created());
}
