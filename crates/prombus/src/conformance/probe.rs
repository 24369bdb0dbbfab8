//! What the rules look with: waiting for something that must come, and for a short while for something that must not.

use crate::{Bus, DeadLetter, Delivery, GroupInfo, Published, PullLimit, Start, Subscription, Topic};
use std::time::Duration;

/// What must come comes within this time, also on a machine that is busy with other tests.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// What must not come is waited for this long.
pub(super) const WHILE: Duration = Duration::from_millis(60);

/// Waits for something that must come.
pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not come within {SOON:?}"),
    }
}

/// Waits until something holds.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The next delivery, which must come.
pub(super) async fn next(subscription: &mut Subscription) -> Delivery {
    let next = soon("the next delivery", subscription.next()).await;
    next.expect("the stream goes on").expect("the delivery can be read")
}

/// The next deliveries, which must come.
pub(super) async fn take(subscription: &mut Subscription, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::with_capacity(count);
    while deliveries.len() < count {
        deliveries.push(next(subscription).await);
    }
    deliveries
}

/// Nothing comes for a while.
pub(super) async fn nothing(subscription: &mut Subscription) {
    if let Ok(next) = tokio::time::timeout(WHILE, subscription.next()).await {
        panic!("nothing was to come, but {next:?} did");
    }
}

/// A member waits for something and gives up waiting, as one does that looks at several things in turn.
pub(super) async fn wait_in_vain(subscription: &mut Subscription) {
    if let Ok(next) = tokio::time::timeout(Duration::from_millis(5), subscription.next()).await {
        panic!("nothing was to come, but {next:?} did");
    }
}

/// Publishes the numbers 1, 2, 3 …
pub(super) async fn publish_numbers(bus: &Bus, topic: &str, count: u64) -> Vec<Published> {
    let mut published = Vec::new();
    for number in 1..=count {
        published.push(bus.publish(topic, &number).await.expect("publishes"));
    }
    published
}

/// Publishes one event.
pub(super) async fn publish(bus: &Bus, topic: &str, payload: impl serde::Serialize) -> Published {
    bus.publish(topic, &payload).await.expect("publishes")
}

/// A member of a group that starts at the oldest event.
pub(super) async fn subscribe(bus: &Bus, topic: &str, group: &str) -> Subscription {
    bus.subscribe(topic, group).from_earliest().await.expect("subscribes")
}

/// Acks and waits until that is durable; it must count.
pub(super) async fn ack(delivery: &Delivery) {
    let settled = soon("the answer to an ack", delivery.ack()).await.expect("acks");
    assert!(!settled.stale, "an ack of {delivery:?} is stale");
}

/// What a group says of itself.
pub(super) async fn group_info(bus: &Bus, topic: &str, group: &str) -> GroupInfo {
    let groups = bus.groups().await.expect("lists groups");
    let found = groups.into_iter().find(|info| info.topic == topic && info.group == group);
    found.unwrap_or_else(|| panic!("there is a group {group} on {topic}"))
}

/// The floor of a group that reads one topic.
pub(super) async fn floor(bus: &Bus, topic: &str, group: &str) -> u64 {
    group_info(bus, topic, group).await.topics[0].floor
}

/// Waits until a group's floor is there.
pub(super) async fn until_floor(bus: &Bus, topic: &str, group: &str, wanted: u64) {
    until(&format!("floor {wanted}"), || async { floor(bus, topic, group).await == wanted }).await;
}

/// Waits until nobody has a lease.
pub(super) async fn until_nothing_in_flight(bus: &Bus, topic: &str, group: &str) {
    until("the end of the leases", || async { group_info(bus, topic, group).await.in_flight == 0 }).await;
}

/// A topic's name.
pub(super) fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

/// The payloads of a topic; none when there is no such topic.
pub(super) async fn payloads(bus: &Bus, name: &str) -> Vec<String> {
    match bus.read(&topic(name), Start::Earliest, PullLimit::default()).await {
        Ok(page) => page.events.iter().map(|event| event.payload().to_owned()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Waits for so many dead letters of a topic, and no more.
pub(super) async fn dead_letters(bus: &Bus, name: &str, count: usize) -> Vec<DeadLetter> {
    let letters = format!("dlq.{name}");
    until("a dead letter", || async { payloads(bus, &letters).await.len() >= count }).await;
    let all = payloads(bus, &letters).await;
    assert_eq!(all.len(), count, "{all:?}");
    all.iter().map(|payload| serde_json::from_str(payload).expect("a dead letter")).collect()
}

/// Payloads of deliveries.
pub(super) fn texts(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.payload()).collect()
}
