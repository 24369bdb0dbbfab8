//! Rules about seeks and cursors.

use super::probe::{
    ack, floor, group_info, next, nothing, publish, publish_numbers, soon, subscribe, take, texts,
};
use crate::{Bus, CursorPosition, GroupError, Start, Subscription, Uuid};
use std::time::Duration;

async fn one_by_one(bus: &Bus) -> Subscription {
    bus.subscribe("orders", "billing").from_earliest().batch_size(1).await.expect("subscribes")
}

/// After a seek back, settled events are delivered again, as if for the first time.
pub async fn seek_back_delivers_again(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 4).await;
    let mut orders = one_by_one(&bus).await;
    for _ in 0..4 {
        ack(&next(&mut orders).await).await;
    }
    bus.seek("orders", "billing", Start::AfterId(published[1].id)).await.expect("seeks");
    assert_eq!(floor(&bus, "orders", "billing").await, 2);
    let again = take(&mut orders, 2).await;
    assert_eq!(texts(&again), ["3", "4"]);
    assert!(again.iter().all(|it| it.attempt() == 1 && it.reason().is_none()));
    nothing(&mut orders).await;
}

/// A waiting member is woken by a seek back.
pub async fn seek_back_wakes_a_waiting_member(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    ack(&next(&mut orders).await).await;
    let waiting = tokio::spawn(async move { next(&mut orders).await.seq() });
    tokio::time::sleep(Duration::from_millis(10)).await;
    bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    assert_eq!(soon("the event", waiting).await.expect("no panic"), 1);
}

/// A seek forward settles the events that it skips.
pub async fn seek_forward_skips(bus: Bus) {
    for ts in [1_000, 2_000, 3_000, 4_000] {
        bus.publish("orders", &ts).ts(ts).await.expect("publishes");
    }
    let mut orders = one_by_one(&bus).await;
    bus.seek("orders", "billing", Start::Ts(3_000)).await.expect("seeks");
    let third = next(&mut orders).await;
    assert_eq!((third.seq(), floor(&bus, "orders", "billing").await), (3, 2));
    bus.seek("orders", "billing", Start::Latest).await.expect("seeks");
    assert_eq!(group_info(&bus, "orders", "billing").await.lag, 0);
    nothing(&mut orders).await;
    publish(&bus, "orders", 5_000).await;
    assert_eq!(next(&mut orders).await.seq(), 5);
}

/// A seek voids all leases: acks and nacks of deliveries from before the seek are stale.
pub async fn seek_voids_leases(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut orders = one_by_one(&bus).await;
    let old = take(&mut orders, 2).await;
    bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 0);
    assert!(old[0].ack().await.expect("succeeds").stale);
    assert!(old[1].nack("boom").await.expect("succeeds").stale);
    assert!(!old[1].extend(Duration::from_secs(5)));
    assert_eq!(floor(&bus, "orders", "billing").await, 0);
    assert_eq!(texts(&take(&mut orders, 3).await), ["1", "2", "3"]);
}

/// A seek resets the attempts of events that wait for redelivery.
pub async fn seek_forgets_attempts(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut orders = one_by_one(&bus).await;
    next(&mut orders).await.nack_after(Duration::from_secs(60), "later").await.expect("nacks");
    bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    let again = next(&mut orders).await;
    assert_eq!((again.seq(), again.attempt(), again.reason()), (1, 1, None));
}

/// A seek of one group leaves the others alone.
pub async fn seek_moves_one_group_only(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let mut billing = one_by_one(&bus).await;
    let mut shipping = subscribe(&bus, "orders", "shipping").await;
    let theirs = take(&mut shipping, 2).await;
    ack(&next(&mut billing).await).await;
    bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    ack(&theirs[0]).await;
    ack(&theirs[1]).await;
    assert_eq!(floor(&bus, "orders", "shipping").await, 2);
}

/// A seek to an unknown id is an error and moves nothing.
pub async fn seek_to_an_unknown_id_is_an_error(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let mut orders = one_by_one(&bus).await;
    let first = next(&mut orders).await;
    let id = Uuid::from_u128(1);
    let refused = bus.seek("orders", "billing", Start::AfterId(id)).await.expect_err("no such event");
    assert_eq!(refused, GroupError::UnknownId(id));
    ack(&first).await;
    assert_eq!(next(&mut orders).await.seq(), 2);
}

/// A preview says how many events a seek would deliver again and skip, and leaves the group where it is.
pub async fn a_preview_of_a_seek_counts_and_changes_nothing(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 6).await;
    let mut orders = one_by_one(&bus).await;
    let all = take(&mut orders, 6).await;
    for delivery in [&all[0], &all[1], &all[4]] {
        ack(delivery).await;
    }
    let preview = async |to| bus.preview_seek("orders", "billing", to).await.expect("previews");
    let start = preview(Start::Earliest).await;
    assert_eq!((start.redeliver, start.skip, start.leases, start.lag), (3, 0, 3, 6));
    assert_eq!((start.cursor.last_id, start.is_exact), (None, true));
    let middle = preview(Start::AfterId(published[2].id)).await;
    assert_eq!((middle.redeliver, middle.skip, middle.leases, middle.lag), (1, 1, 3, 3));
    assert_eq!(middle.cursor.last_id, Some(published[2].id));
    let end = preview(Start::Latest).await;
    assert_eq!((end.redeliver, end.skip, end.leases, end.lag), (0, 3, 3, 0));
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.topics[0].floor, info.in_flight), (2, 3));
    assert!(!all[2].ack().await.expect("acks").stale, "the lease is still valid");
    let unknown = bus.preview_seek("orders", "other", Start::Latest).await.expect_err("no such group");
    assert!(matches!(unknown, GroupError::UnknownGroup { .. }), "{unknown}");
    let unknown = bus.preview_seek("orders", "billing", Start::AfterId(Uuid::from_u128(1))).await;
    assert_eq!(unknown.expect_err("no such event"), GroupError::UnknownId(Uuid::from_u128(1)));
}

/// The cursor is the event at the floor. Setting it moves the group to just after an event, to a time, or to the start.
pub async fn the_cursor_can_be_set(bus: Bus) {
    let mut published = Vec::new();
    for ts in [1_000, 2_000, 3_000] {
        published.push(bus.publish("orders", &ts).ts(ts).await.expect("publishes"));
    }
    let mut orders = one_by_one(&bus).await;
    let cursor = |last_id, last_ts| CursorPosition { topic: "orders".to_owned(), last_id, last_ts };
    let after_second = cursor(Some(published[1].id), None);
    bus.set_cursor("orders", "billing", &after_second).await.expect("sets");
    let now = bus.get_cursor("orders", "billing").await.expect("reads");
    assert_eq!(now, Some(cursor(Some(published[1].id), Some(2_000))));
    assert_eq!(next(&mut orders).await.seq(), 3);

    bus.set_cursor("orders", "billing", &cursor(None, Some(1_500))).await.expect("sets");
    assert_eq!(next(&mut orders).await.seq(), 2);
    bus.set_cursor("orders", "billing", &cursor(None, None)).await.expect("sets");
    assert_eq!(next(&mut orders).await.seq(), 1);
    assert_eq!(bus.get_cursor("orders", "billing").await.expect("reads"), Some(cursor(None, None)));
}

/// A group that does not exist has no cursor and cannot be moved.
pub async fn an_unknown_group_has_no_cursor(bus: Bus) {
    subscribe(&bus, "orders", "billing").await;
    assert_eq!(bus.get_cursor("orders", "other").await.expect("succeeds"), None);
    assert_eq!(bus.get_cursor("other", "billing").await.expect("succeeds"), None);
    let refused = bus.seek("orders", "other", Start::Earliest).await.expect_err("no such group");
    assert!(matches!(refused, GroupError::UnknownGroup { .. }), "{refused}");
}
