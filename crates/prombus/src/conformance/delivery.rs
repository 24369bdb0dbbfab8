//! Rules about delivery: order, groups, members, windows.

use super::probe::{
    SOON, ack, floor, group_info, next, nothing, publish, publish_numbers, soon, subscribe, take, texts,
    until, until_floor, wait_briefly_without_a_delivery,
};
use crate::{Bus, Subscription};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// A group gets a topic's events in the order of their seqs, both existing and new ones.
pub async fn a_group_gets_events_in_order(bus: Bus) {
    publish_numbers(&bus, "orders", 150).await;
    let mut orders =
        bus.subscribe("orders", "billing").from_earliest().batch_size(7).await.expect("subscribes");
    let mut seqs = Vec::new();
    for _ in 0..150 {
        let delivery = next(&mut orders).await;
        seqs.push(delivery.seq());
        drop(delivery.ack());
    }
    publish_numbers(&bus, "orders", 50).await;
    for delivery in take(&mut orders, 50).await {
        seqs.push(delivery.seq());
    }
    assert_eq!(seqs, (1..=200).collect::<Vec<_>>());
}

/// Spawns a task that acks all deliveries of a subscription, and adds the seq of each and the number `member` to `seen`.
fn spawn_member(
    tasks: &mut JoinSet<()>,
    mut subscription: Subscription,
    member: u64,
    seen: &Arc<parking_lot::Mutex<Vec<(u64, u64)>>>,
) {
    let seen = Arc::clone(seen);
    tasks.spawn(async move {
        while let Some(Ok(delivery)) = subscription.next().await {
            seen.lock().push((delivery.seq(), member));
            drop(delivery.ack());
            tokio::task::yield_now().await;
        }
    });
}

/// Each event goes to exactly one member of a group.
pub async fn each_event_goes_to_one_member_of_a_group(bus: Bus) {
    let (seen, mut tasks) = (Arc::default(), JoinSet::new());
    for member in 0..3 {
        let subscription = bus.subscribe("orders", "billing").from_earliest().batch_size(2).await;
        spawn_member(&mut tasks, subscription.expect("subscribes"), member, &seen);
    }
    publish_numbers(&bus, "orders", 90).await;
    until_floor(&bus, "orders", "billing", 90).await;
    let mut seqs: Vec<u64> = seen.lock().iter().map(|&(seq, _)| seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=90).collect::<Vec<_>>());
}

/// Waiting members get events in turn.
pub async fn competing_members_take_turns(bus: Bus) {
    let (seen, mut tasks) = (Arc::default(), JoinSet::new());
    for member in 0..3 {
        spawn_member(&mut tasks, subscribe(&bus, "orders", "billing").await, member, &seen);
    }
    for number in 1..=30 {
        publish(&bus, "orders", number).await;
        until_floor(&bus, "orders", "billing", number).await;
    }
    let mut shares = BTreeMap::new();
    for &(_, member) in seen.lock().iter() {
        *shares.entry(member).or_insert(0) += 1;
    }
    assert!(shares.len() == 3 && shares.values().all(|&share| share >= 5), "{shares:?}");
}

/// Every group gets every event, independent of other groups.
pub async fn every_group_gets_every_event(bus: Bus) {
    let mut billing = subscribe(&bus, "orders", "billing").await;
    let mut shipping = subscribe(&bus, "orders", "shipping").await;
    publish_numbers(&bus, "orders", 5).await;
    for delivery in take(&mut billing, 5).await {
        ack(&delivery).await;
    }
    assert_eq!(texts(&take(&mut shipping, 5).await), ["1", "2", "3", "4", "5"]);
    assert_eq!(floor(&bus, "orders", "shipping").await, 0);
}

/// An ack moves the cursor to its event.
pub async fn an_ack_advances_the_cursor(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 3).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let cursor = bus.get_cursor("orders", "billing").await.expect("reads").expect("there is a group");
    assert_eq!((cursor.topic.as_str(), cursor.last_id, cursor.last_ts), ("orders", None, None));
    for published in &published {
        let delivery = next(&mut orders).await;
        ack(&delivery).await;
        let cursor = bus.get_cursor("orders", "billing").await.expect("reads").expect("there is a group");
        assert_eq!((cursor.last_id, cursor.last_ts), (Some(published.id), Some(delivery.ts())));
    }
}

/// An ack out of order never moves the floor over an event that is not settled.
pub async fn an_ack_out_of_order_leaves_the_floor_below_the_unsettled_event(bus: Bus) {
    publish_numbers(&bus, "orders", 5).await;
    let mut orders = subscribe(&bus, "orders", "billing").await;
    let all = take(&mut orders, 5).await;
    for (acked, wanted_floor) in [(4, 0), (2, 0), (0, 1), (3, 1), (1, 5)] {
        ack(&all[acked]).await;
        let info = &group_info(&bus, "orders", "billing").await.topics[0];
        assert_eq!(info.floor, wanted_floor, "after the ack of seq {}", acked + 1);
    }
    let info = &group_info(&bus, "orders", "billing").await.topics[0];
    assert_eq!((info.settled_above, info.lag), (0, 0));
}

/// A delivery contains its attempt, the time that its lease runs, and the limit of attempts.
pub async fn a_delivery_contains_its_attempt_lease_and_limit(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let orders = bus.subscribe("orders", "billing").from_earliest();
    let orders = orders.ack_timeout(Duration::from_millis(12_345)).max_attempts(7);
    let mut orders = orders.await.expect("subscribes");
    let delivery = next(&mut orders).await;
    assert_eq!((delivery.attempt(), delivery.reason()), (1, None));
    let context = delivery.context();
    assert_eq!((context.attempt, context.max_attempts, context.reason), (1, 7, None));
    assert_eq!(context.ack_deadline_ms, 12_345);
}

/// A member never has more unsettled deliveries than its `max_in_flight`.
pub async fn max_in_flight_is_respected(bus: Bus) {
    publish_numbers(&bus, "orders", 20).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().max_in_flight(3);
    let mut orders = orders.await.expect("subscribes");
    let mut held = take(&mut orders, 3).await;
    nothing(&mut orders).await;
    for seq in 4..=20 {
        ack(&held.remove(0)).await;
        let delivery = next(&mut orders).await;
        assert_eq!(delivery.seq(), seq);
        held.push(delivery);
        assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 3);
    }
}

/// If a member waits while its window (`max_in_flight`) is full, it gets the next event as soon as it acks.
pub async fn an_ack_wakes_a_member_whose_window_was_full(bus: Bus) {
    publish_numbers(&bus, "orders", 2).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().max_in_flight(1);
    let mut orders = orders.await.expect("subscribes");
    let first = next(&mut orders).await;
    let waiting = tokio::spawn(async move { next(&mut orders).await.seq() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    ack(&first).await;
    assert_eq!(soon("the second event", waiting).await.expect("no panic"), 2);
}

/// One pull leases at most `batch_size` events.
pub async fn batch_size_is_respected(bus: Bus) {
    publish_numbers(&bus, "orders", 10).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().batch_size(4);
    let mut orders = orders.await.expect("subscribes");
    let mut sizes = Vec::new();
    let mut seqs = Vec::new();
    while seqs.len() < 10 {
        let deliveries = soon("a batch", orders.next_batch()).await.expect("pulls");
        sizes.push(deliveries.len());
        seqs.extend(deliveries.events().map(|event| event.seq()));
        if sizes.len() == 1 {
            assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 4);
        }
        assert!(!deliveries.ack().await.expect("acks").stale);
    }
    assert_eq!(sizes, [4, 4, 2]);
    assert_eq!(seqs, (1..=10).collect::<Vec<_>>());
}

/// A group never has more than `max_unsettled` events leased or waiting for redelivery.
pub async fn max_unsettled_is_respected(bus: Bus) {
    publish_numbers(&bus, "orders", 10).await;
    let member = || bus.subscribe("orders", "billing").from_earliest().max_unsettled(3).max_in_flight(2);
    let mut one = member().await.expect("subscribes");
    let mut other = member().await.expect("subscribes");
    let theirs = take(&mut one, 2).await;
    let third = next(&mut other).await;
    nothing(&mut other).await;
    // An event that waits for redelivery is unsettled too.
    soon("the nack", theirs[0].nack_after(Duration::from_secs(60), "later")).await.expect("nacks");
    nothing(&mut other).await;
    ack(&third).await;
    assert_eq!(next(&mut other).await.seq(), 4);
    nothing(&mut one).await;
    let info = group_info(&bus, "orders", "billing").await;
    assert_eq!((info.in_flight, info.waiting), (2, 1));
}

/// Members that stopped waiting do not keep an event from the member that waits.
pub async fn members_that_stopped_waiting_do_not_delay_others(bus: Bus) {
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut subscription = subscribe(&bus, "orders", "billing").await;
        wait_briefly_without_a_delivery(&mut subscription).await;
        idle.push(subscription);
    }
    let mut waiting = subscribe(&bus, "orders", "billing").await;
    let waiter = tokio::spawn(async move { next(&mut waiting).await.seq() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    publish(&bus, "orders", 1).await;
    let got = tokio::time::timeout(Duration::from_secs(2), waiter).await;
    assert_eq!(got.expect("the waiting member gets the event").expect("no panic"), 1);
}

/// Paused members do not keep an event from the member that waits.
pub async fn paused_members_do_not_delay_others(bus: Bus) {
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let mut subscription = subscribe(&bus, "orders", "billing").await;
        wait_briefly_without_a_delivery(&mut subscription).await;
        subscription.pause();
        tasks.spawn(async move {
            let _ = subscription.next().await;
        });
    }
    let mut waiting = subscribe(&bus, "orders", "billing").await;
    let waiter = tokio::spawn(async move { next(&mut waiting).await.seq() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    publish(&bus, "orders", 1).await;
    let got = tokio::time::timeout(Duration::from_secs(2), waiter).await;
    assert_eq!(got.expect("the waiting member gets the event").expect("no panic"), 1);
}

/// Deliveries that a leaving member returns reach the member that waits, also if others have stopped waiting.
pub async fn returned_deliveries_reach_a_waiting_member(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let mut first = subscribe(&bus, "orders", "billing").await;
    next(&mut first).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut subscription = subscribe(&bus, "orders", "billing").await;
        wait_briefly_without_a_delivery(&mut subscription).await;
        idle.push(subscription);
    }
    let mut waiting = subscribe(&bus, "orders", "billing").await;
    let waiter = tokio::spawn(async move { next(&mut waiting).await.seq() });
    tokio::time::sleep(Duration::from_millis(20)).await;
    first.unsubscribe().await.expect("leaves");
    let got = tokio::time::timeout(Duration::from_secs(2), waiter).await;
    assert_eq!(got.expect("the waiting member gets the event").expect("no panic"), 1);
}

/// Two concurrent members ack a thousand events between them; none is lost.
pub async fn concurrent_members_lose_no_event(bus: Bus) {
    let acked = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let mut subscription = subscribe(&bus, "orders", "billing").await;
        let acked = Arc::clone(&acked);
        tasks.spawn(async move {
            while let Ok(deliveries) = subscription.next_batch().await {
                let settled = deliveries.ack().await.expect("acks");
                assert!(!settled.stale);
                acked.fetch_add(deliveries.len() as u64, Ordering::SeqCst);
            }
        });
    }
    let publishing: Vec<_> = (0..1_000).map(|number| bus.publish("orders", &number).send()).collect();
    for publishing in publishing {
        publishing.await.expect("publishes");
    }
    until("all acks", || async { acked.load(Ordering::SeqCst) == 1_000 }).await;
    until_floor(&bus, "orders", "billing", 1_000).await;
    // On a simulated bad network an outage may be in progress.
    let closed = bus.close().await;
    assert!(matches!(closed, Ok(()) | Err(crate::Unavailable::Closed)), "{closed:?}");
    let ended = tokio::time::timeout(SOON, tasks.join_all()).await;
    ended.expect("the members end with the bus");
}
