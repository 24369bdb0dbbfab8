//! Rules about pausing, deleting, closing and dropping.

use super::probe::{
    ack, group_info, next, nothing, publish, publish_numbers, soon, subscribe, take, texts, until,
    until_floor,
};
use crate::{Bus, GroupError, PublishError, Start, Unavailable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A paused member gets no new events; its leases stay valid, and it continues when resumed.
pub async fn pause_stops_deliveries_until_resume(bus: Bus) {
    let mut orders = subscribe(&bus, "orders", "billing").await;
    publish(&bus, "orders", 1).await;
    let first = next(&mut orders).await;
    orders.pause();
    publish(&bus, "orders", 2).await;
    nothing(&mut orders).await;
    ack(&first).await;
    nothing(&mut orders).await;
    orders.resume();
    assert_eq!(next(&mut orders).await.seq(), 2);
}

/// Resuming wakes a waiting member.
pub async fn resume_wakes_a_waiting_member(bus: Bus) {
    let seen = Arc::new(AtomicBool::new(false));
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().handler(move |_, _| {
        sink.store(true, Ordering::SeqCst);
        async { Ok::<(), String>(()) }
    });
    let handler = handler.await.expect("subscribes");
    handler.pause();
    publish(&bus, "orders", 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!seen.load(Ordering::SeqCst), "a paused handler was called");
    handler.resume();
    until_floor(&bus, "orders", "billing", 1).await;
}

/// The leases of a paused member expire like any other.
pub async fn leases_of_a_paused_member_keep_running(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let paused = bus.subscribe("orders", "billing").from_earliest().ack_timeout(Duration::from_millis(60));
    let mut paused = paused.await.expect("subscribes");
    next(&mut paused).await;
    paused.pause();
    let mut other = subscribe(&bus, "orders", "billing").await;
    assert_eq!(next(&mut other).await.attempt(), 2);
}

/// A paused group keeps its members and delivers nothing to them, not even to members that join later. Pausing twice is the
/// same as pausing once.
pub async fn a_paused_group_delivers_nothing_until_it_is_resumed(bus: Bus) {
    let mut orders = subscribe(&bus, "orders", "billing").await;
    publish(&bus, "orders", 1).await;
    let first = next(&mut orders).await;
    assert!(!group_info(&bus, "orders", "billing").await.is_paused);
    for _ in 0..2 {
        bus.pause_group("orders", "billing").await.expect("pauses");
    }
    assert!(group_info(&bus, "orders", "billing").await.is_paused);
    publish(&bus, "orders", 2).await;
    nothing(&mut orders).await;
    let mut late = subscribe(&bus, "orders", "billing").await;
    nothing(&mut late).await;
    assert!(!first.ack().await.expect("acks").stale);
    nothing(&mut orders).await;
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.members, info.lag, info.topics[0].floor), (2, 1, 1));
    late.unsubscribe().await.expect("leaves");
    for _ in 0..2 {
        bus.resume_group("orders", "billing").await.expect("resumes");
    }
    assert_eq!(next(&mut orders).await.seq(), 2);
    assert!(!group_info(&bus, "orders", "billing").await.is_paused);
    for refused in [bus.pause_group("orders", "other").await, bus.resume_group("other", "billing").await] {
        let refused = refused.expect_err("no such group");
        assert!(matches!(refused, GroupError::UnknownGroup { .. }), "{refused}");
    }
}

/// All members that wait while their group is paused get events when it is resumed.
pub async fn resuming_a_group_wakes_all_its_members(bus: Bus) {
    let join = || bus.subscribe("orders", "billing").from_earliest().max_in_flight(1);
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(join().await.expect("subscribes"));
    }
    bus.pause_group("orders", "billing").await.expect("pauses");
    publish_numbers(&bus, "orders", 3).await;
    let waiting = members.into_iter().map(|mut member| {
        tokio::spawn(async move {
            let delivery = next(&mut member).await;
            (delivery.seq(), member, delivery)
        })
    });
    let waiting: Vec<_> = waiting.collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 0);
    bus.resume_group("orders", "billing").await.expect("resumes");
    let mut held = Vec::new();
    for waiting in waiting {
        held.push(soon("an event for each member", waiting).await.expect("no panic"));
    }
    let mut seqs: Vec<u64> = held.iter().map(|(seq, ..)| *seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, [1, 2, 3]);
}

/// While a group is paused, its leases expire, and the events are redelivered after it is resumed. A nack applies as well.
pub async fn leases_of_a_paused_group_keep_running(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().ack_timeout(Duration::from_secs(1));
    let mut orders = orders.await.expect("subscribes");
    let both = take(&mut orders, 2).await;
    bus.pause_group("orders", "billing").await.expect("pauses");
    both[1].nack_after(Duration::ZERO, "boom").await.expect("nacks");
    until("the lease to expire", || async { group_info(&bus, "orders", "billing").await.waiting == 2 }).await;
    nothing(&mut orders).await;
    bus.resume_group("orders", "billing").await.expect("resumes");
    let again = take(&mut orders, 2).await;
    assert!(again.iter().all(|it| it.attempt() == 2));
    let mut texts = texts(&again);
    texts.sort_unstable();
    assert_eq!(texts, ["1", "2"]);
}

/// A pause concerns one group; a seek of a paused group and the end of its members do not resume it.
pub async fn pausing_a_group_leaves_others_alone(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut billing = subscribe(&bus, "orders", "billing").await;
    let mut shipping = subscribe(&bus, "orders", "shipping").await;
    bus.pause_group("orders", "billing").await.expect("pauses");
    ack(&next(&mut shipping).await).await;
    bus.seek("orders", "billing", Start::Earliest).await.expect("seeks");
    nothing(&mut billing).await;
    billing.unsubscribe().await.expect("leaves");
    let mut billing = subscribe(&bus, "orders", "billing").await;
    nothing(&mut billing).await;
    bus.resume_group("orders", "billing").await.expect("resumes");
    assert_eq!(next(&mut billing).await.seq(), 1);
}

/// When a group is deleted, the streams of its members end. A new group of that name does not inherit its progress.
pub async fn a_deleted_group_is_gone(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let all = take(&mut orders, 2).await;
    ack(&all[0]).await;
    let waiting = tokio::spawn(async move { orders.next().await.is_none() });
    bus.delete_group("orders", "billing").await.expect("deletes");
    assert!(soon("the end of the stream", waiting).await.expect("no panic"));
    assert!(bus.groups().await.expect("lists groups").is_empty());
    assert_eq!(bus.get_cursor("orders", "billing").await.expect("succeeds"), None);
    let refused = bus.ack("orders", "billing", all[1].id()).await.expect_err("no such group");
    assert!(matches!(refused, GroupError::UnknownGroup { .. }), "{refused}");
    let again = bus.delete_group("orders", "billing").await.expect_err("no such group");
    assert!(matches!(again, GroupError::UnknownGroup { .. }), "{again}");

    let mut recreated = subscribe(&bus, "orders", "billing").await;
    assert!(recreated.created());
    drop(all[1].ack());
    assert_eq!(texts(&take(&mut recreated, 2).await), ["1", "2"]);
}

/// Deleting a group leaves the others alone.
pub async fn deleting_a_group_leaves_others_alone(bus: Bus) {
    let _billing = subscribe(&bus, "orders", "billing").await;
    let mut shipping = subscribe(&bus, "orders", "shipping").await;
    bus.delete_group("orders", "billing").await.expect("deletes");
    publish(&bus, "orders", 1).await;
    ack(&next(&mut shipping).await).await;
    assert_eq!(group_info(&bus, "orders", "shipping").await.topics[0].floor, 1);
}

/// Closing ends streams and handlers; later calls fail because the bus is closed.
pub async fn close_ends_streams_and_later_calls_fail(bus: Bus) {
    let published = publish(&bus, "orders", 1).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    let handler = bus.subscribe("orders", "handled").handler(|_, _| async { Ok::<(), String>(()) });
    let handler = handler.await.expect("subscribes");
    let waiting = tokio::spawn(async move { (orders.next().await.is_none(), orders) });
    tokio::time::sleep(Duration::from_millis(5)).await;
    soon("the end of the bus", bus.close()).await.expect("closes");
    let (has_ended, mut orders) = soon("the end of the stream", waiting).await.expect("no panic");
    assert!(has_ended);
    assert!(orders.next().await.is_none(), "an ended stream stays ended");
    let closed = GroupError::Unavailable(Unavailable::Closed);
    assert_eq!(orders.next_batch().await.expect_err("closed"), closed);

    let refused = bus.publish("orders", &2).await.expect_err("closed");
    assert_eq!(refused, PublishError::Unavailable(Unavailable::Closed));
    assert_eq!(bus.subscribe("orders", "billing").await.expect_err("closed"), closed);
    assert_eq!(bus.subscribe("orders", "other").await.expect_err("closed"), closed);
    assert_eq!(bus.ack("orders", "billing", published.id).await.expect_err("closed"), closed);
    assert_eq!(bus.nack("orders", "billing", published.id, None).await.expect_err("closed"), closed);
    assert_eq!(bus.seek("orders", "billing", Start::Earliest).await.expect_err("closed"), closed);
    assert_eq!(bus.delete_group("orders", "billing").await.expect_err("closed"), closed);
    assert_eq!(delivery.ack().await.expect_err("closed"), Unavailable::Closed);
    assert!(!delivery.extend(Duration::from_secs(5)));
    soon("the end of the handler", handler.unsubscribe()).await.expect("leaves");
    soon("the second close", bus.close()).await.expect("closing twice is fine");
}

/// Closing makes publishes in progress durable.
pub async fn close_completes_publishes_in_progress(bus: Bus) {
    let publishing: Vec<_> = (0..100).map(|number| bus.publish("orders", &number).send()).collect();
    soon("the end of the bus", bus.close()).await.expect("closes");
    for publishing in publishing {
        soon("the publish", publishing).await.expect("it was queued before the bus was closed");
    }
}

/// A clone is the same bus.
pub async fn clones_are_the_same_bus(bus: Bus) {
    let other = bus.clone();
    let mut orders = subscribe(&bus, "orders", "billing").await;
    publish(&other, "orders", 1).await;
    next(&mut orders).await;
    drop(bus);
    publish(&other, "orders", 2).await;
    assert_eq!(next(&mut orders).await.seq(), 2);
}

/// Subscriptions and deliveries keep the bus open. In whatever order handles are dropped, nothing hangs or panics.
pub async fn dropping_all_handles_is_safe(bus: Bus) {
    publish_numbers(&bus, "orders", 3).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let delivery = next(&mut orders).await;
    let handled = Arc::new(AtomicBool::new(false));
    let sink = Arc::clone(&handled);
    let handler = bus.subscribe("orders", "handled").from_earliest().handler(move |event, _| {
        sink.fetch_or(event.seq() == 4, Ordering::SeqCst);
        async { Ok::<(), String>(()) }
    });
    drop(handler.await.expect("subscribes"));
    let publishing = bus.publish("orders", &4).send();
    drop(bus);
    soon("a publish whose bus is gone", publishing).await.expect("a subscription keeps the bus open");
    assert_eq!(next(&mut orders).await.seq(), 2);
    ack(&delivery).await;
    until("the handler", || async { handled.load(Ordering::SeqCst) }).await;
    drop(orders);
    let last = delivery.ack().await;
    assert!(last.is_ok_and(|settled| settled.stale), "a delivery keeps the bus open");
}

/// Dropping the last handle of a bus without subscriptions closes the bus; publishes in progress still resolve.
pub async fn the_last_handle_closes_the_bus(bus: Bus) {
    let publishing: Vec<_> = (0..10).map(|number| bus.publish("orders", &number).send()).collect();
    drop(bus);
    for publishing in publishing {
        soon("a publish whose bus is gone", publishing).await.expect("it was queued");
    }
}
