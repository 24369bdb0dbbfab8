//! 9. Bounded memory: backpressure reaches the client that causes it, and nothing is dropped silently.

use crate::rig::{Rig, poll, small_options};
use prombus::{Bus, PublishError};
use std::time::Duration;

/// A publisher that is faster than the disk waits: the queue is bounded, however much it sends.
#[test]
fn guarantee_9_bounded_memory_a_publisher_faster_than_the_disk_waits() {
    let rig = Rig::new(1);
    let text = "x".repeat(500);
    let mut publishing: Vec<_> = Vec::new();
    for _ in 0..100 {
        let mut batch = rig.bus.batch();
        batch.push("orders", &text, &Default::default()).expect("a good event");
        publishing.push(rig.bus.publish_batch(batch));
    }
    let queued = publishing.iter().filter(|it| it.outcomes().is_some()).count();
    let bytes = queued * text.len();
    assert!(bytes <= 2 * small_options().batch_bytes, "{bytes} bytes are queued");
    assert!(queued >= 1, "the first is queued");
    for publishing in &mut publishing {
        assert!(poll(publishing).is_pending(), "nothing resolves before a commit");
    }
    let mut done = 0;
    let mut commits = 0;
    while done < 100 {
        rig.commit();
        commits += 1;
        assert!(commits < 1_000, "no progress");
        publishing.retain_mut(|publishing| match poll(publishing) {
            std::task::Poll::Ready(published) => {
                published.expect("publishes");
                done += 1;
                false
            }
            std::task::Poll::Pending => true,
        });
    }
    assert_eq!(rig.payloads("orders").len(), 100, "nothing is lost");
    rig.stop();
}

/// A publish that is not awaited is still queued, or the publisher gets an error: it does not vanish.
#[test]
fn guarantee_9_nothing_is_dropped_silently_when_a_publish_is_not_awaited() {
    let rig = Rig::new(1);
    let text = "x".repeat(500);
    for _ in 0..20 {
        // A queued publish becomes durable whether or not it is awaited.
        drop(rig.bus.publish("orders", &text).send());
    }
    for _ in 0..20 {
        rig.pass(10);
        rig.commit();
    }
    assert_eq!(rig.payloads("orders").len(), 20);
    rig.stop();
}

/// A member that never acks gets its window and no more; the group's bound holds for all members together.
#[test]
fn guarantee_9_bounded_memory_members_that_never_ack() {
    let rig = Rig::new(1);
    let mut batch = rig.bus.batch();
    for number in 0..400 {
        batch.push("orders", &number, &Default::default()).expect("a good event");
        if batch.len() == 20 {
            let full = std::mem::replace(&mut batch, rig.bus.batch());
            rig.done(rig.bus.publish_batch(full)).expect("publishes");
        }
    }
    let member =
        || rig.bus.subscribe("orders", "billing").from_earliest().max_in_flight(50).max_unsettled(120);
    let mut members: Vec<_> = (0..4).map(|_| rig.join(member())).collect();
    let held: Vec<usize> = members.iter_mut().map(|member| rig.all(member).len()).collect();
    assert_eq!(held, [50, 50, 20, 0]);
    // Leases expire again and again: there are never more of them, and no event is forgotten.
    for _ in 0..3 {
        rig.pass(30_000);
        rig.commit();
        let again: usize = members.iter_mut().map(|member| rig.all_redelivered(member).len()).sum();
        let info = rig.info("orders", "billing");
        assert_eq!((again, info.in_flight, info.in_flight + info.waiting), (120, 120, 120));
    }
    assert_eq!(rig.info("orders", "billing").lag, 400);
    rig.stop();
}

/// A member that never reads has no leases in memory and misses nothing: the tail holds 2 KiB, the rest is read from files.
#[test]
fn guarantee_9_bounded_memory_a_member_that_never_reads() {
    let rig = Rig::new(1);
    let mut sleeper = rig.subscribe("orders", "sleeper");
    let text = "x".repeat(400);
    for _ in 0..200 {
        rig.publish("orders", &text);
    }
    assert_eq!(rig.info("orders", "sleeper").in_flight, 0);
    assert_eq!(rig.all(&mut sleeper).len(), 200);
    rig.stop();
}

/// Any number of acks after one unsettled event is one range.
#[test]
fn guarantee_9_bounded_memory_acks_after_an_unsettled_event_are_one_range() {
    let rig = Rig::new(1);
    for _ in 0..20 {
        let mut batch = rig.bus.batch();
        for number in 0..20 {
            batch.push("orders", &number, &Default::default()).expect("a good event");
        }
        rig.done(rig.bus.publish_batch(batch)).expect("publishes");
    }
    let mut orders = rig.subscribe("orders", "billing");
    let all = rig.all(&mut orders);
    let before = rig.store.log().stats().bytes;
    for delivery in all.iter().skip(1).rev() {
        drop(delivery.ack());
    }
    rig.pass(10);
    rig.commit();
    let info = &rig.info("orders", "billing").topics[0];
    assert_eq!((info.floor, info.settled_above), (0, 399));
    let written = rig.store.log().stats().bytes - before;
    assert!(written < 1_024, "{written} bytes for one range");
    rig.stop();
}

/// At its limit, a bus in memory refuses events like a full disk; stored events are still delivered.
#[tokio::test]
async fn guarantee_9_bounded_memory_of_a_bus_in_memory() {
    let bus = Bus::builder().memory_bytes(70_000).memory().expect("opens");
    let text = "x".repeat(1_000);
    let mut orders = bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    let mut kept = 0;
    let refused = loop {
        match bus.publish("orders", &text).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 70, "{kept} events of 1000 bytes in 70000");
    };
    assert_eq!(refused, PublishError::StorageFull);
    assert!(kept > 50, "{kept}");
    for _ in 0..kept {
        let next = tokio::time::timeout(Duration::from_secs(5), orders.next()).await.expect("it comes");
        next.expect("the stream continues").expect("a delivery").ack().await.expect("acks");
    }
    assert_eq!(bus.groups().await.expect("lists groups")[0].lag, 0);
}
