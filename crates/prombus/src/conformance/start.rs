//! Rules about the start position of a new group.

use super::probe::{next, nothing, publish, publish_numbers, subscribe, take, texts};
use crate::{Bus, GroupError, Start, Uuid};
use std::time::Duration;

/// The first member creates the group.
pub async fn the_first_member_creates_the_group(bus: Bus) {
    let first = subscribe(&bus, "orders", "billing").await;
    let second = subscribe(&bus, "orders", "billing").await;
    let elsewhere = subscribe(&bus, "orders", "shipping").await;
    assert_eq!([first.created(), second.created(), elsewhere.created()], [true, false, true]);
    let handler = bus.subscribe("orders", "audit").handler(|_, _| async { Ok::<(), String>(()) });
    assert!(handler.await.expect("subscribes").created());
}

/// A group that starts at `latest`, the default, gets only events that are published later.
pub async fn from_latest_gets_only_later_events(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut orders = bus.subscribe("orders", "billing").await.expect("subscribes");
    nothing(&mut orders).await;
    publish(&bus, "orders", 4).await;
    assert_eq!(next(&mut orders).await.seq(), 4);
}

/// A group that starts at `latest` does not get events that were published before, even if they were not durable yet.
pub async fn from_latest_leaves_out_an_earlier_publish_that_is_not_durable_yet(bus: Bus) {
    for round in 0..20 {
        let topic = format!("orders.{round}");
        let before = bus.publish(&*topic, "before").send();
        let mut orders = bus.subscribe(&topic, "billing").await.expect("subscribes");
        let after = bus.publish(&*topic, "after").send();
        assert_eq!(next(&mut orders).await.payload(), "\"after\"", "round {round}");
        before.await.expect("publishes");
        after.await.expect("publishes");
    }
}

/// A group that starts at `earliest` gets all events.
pub async fn from_earliest_gets_everything(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    publish(&bus, "orders", 4).await;
    assert_eq!(texts(&take(&mut orders, 4).await), ["1", "2", "3", "4"]);
}

/// A group that starts at a time gets the first event whose `ts` is that time or later, and all events after that event.
pub async fn from_ts_starts_at_the_first_event_of_that_time(bus: Bus) {
    for ts in [1_000, 2_000, 2_000, 3_000] {
        bus.publish("orders", &ts).ts(ts).await.expect("publishes");
    }
    for (ts, expected) in [(0, 1), (1_000, 1), (1_001, 2), (2_000, 2), (2_001, 4), (3_000, 4)] {
        let orders = bus.subscribe("orders", format!("from-{ts}")).from(Start::Ts(ts));
        let mut orders = orders.await.expect("subscribes");
        assert_eq!(next(&mut orders).await.seq(), expected, "from {ts}");
    }
    let mut orders = bus.subscribe("orders", "later").from(Start::Ts(3_001)).await.expect("subscribes");
    nothing(&mut orders).await;
    bus.publish("orders", &0).ts(4_000).await.expect("publishes");
    assert_eq!(next(&mut orders).await.seq(), 5);
}

/// The first event whose `ts` is a time or later is found even if the `ts` of events, which publishers set, are out of order.
pub async fn from_ts_finds_events_whose_times_are_out_of_order(bus: Bus) {
    for ts in [5_000, 1_000, 9_000, 2_000] {
        bus.publish("orders", &ts).ts(ts).await.expect("publishes");
    }
    for (ts, expected) in [(1_000, 1), (5_000, 1), (5_001, 3), (9_000, 3)] {
        let orders = bus.subscribe("orders", format!("from-{ts}")).from(Start::Ts(ts));
        let mut orders = orders.await.expect("subscribes");
        assert_eq!(next(&mut orders).await.seq(), expected, "from {ts}");
    }
}

/// A group that starts after an id gets the events after that event, whether the bus or the publisher chose the id.
pub async fn from_after_id_starts_after_that_event(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 2).await;
    let chosen = Uuid::from_u128(0xffff_0000_0000_4000_8000_0000_0000_0001);
    bus.publish("orders", &3).id(chosen).await.expect("publishes");
    publish(&bus, "orders", 4).await;
    for (id, expected) in [(published[0].id, 2), (published[1].id, 3), (chosen, 4)] {
        let orders = bus.subscribe("orders", id.to_string()).from(Start::AfterId(id));
        let mut orders = orders.await.expect("subscribes");
        assert_eq!(next(&mut orders).await.seq(), expected);
    }
}

/// An unknown id is an error, and no group is created.
pub async fn from_an_unknown_id_is_an_error_and_creates_no_group(bus: Bus) {
    publish(&bus, "orders", 1).await;
    publish(&bus, "other", 1).await;
    let elsewhere = publish(&bus, "other", 2).await.id;
    for id in [Uuid::from_u128(1), elsewhere] {
        let refused = bus.subscribe("orders", "billing").from(Start::AfterId(id)).await;
        assert_eq!(refused.err(), Some(GroupError::UnknownId(id)));
    }
    assert!(bus.groups().await.expect("lists groups").is_empty());
    assert!(subscribe(&bus, "orders", "billing").await.created());
}

/// `from` applies only when the group is created.
pub async fn from_applies_only_to_a_new_group(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().batch_size(1);
    let mut orders = orders.await.expect("subscribes");
    let first = next(&mut orders).await;
    super::probe::ack(&first).await;
    orders.unsubscribe().await.expect("leaves");
    for start in [Start::Latest, Start::Earliest, Start::Ts(0), Start::AfterId(Uuid::from_u128(1))] {
        let again = bus.subscribe("orders", "billing").from(start).batch_size(1);
        let mut again = again.await.expect("`from` is ignored");
        assert!(!again.created());
        assert_eq!(next(&mut again).await.seq(), 2, "from {start:?}");
        again.unsubscribe().await.expect("leaves");
    }
}

/// A group keeps its position while it has no members.
pub async fn a_group_without_members_keeps_its_position(bus: Bus) {
    let orders = subscribe(&bus, "orders", "billing").await;
    orders.unsubscribe().await.expect("leaves");
    publish_numbers(&bus, "orders", 2).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut orders = bus.subscribe("orders", "billing").await.expect("subscribes");
    assert_eq!(texts(&take(&mut orders, 2).await), ["1", "2"]);
}
