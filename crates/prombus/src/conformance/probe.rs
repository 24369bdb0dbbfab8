//! Helpers of the rules: they wait for something that must happen, and check for a short time that something does not
//! happen.

use crate::{Bus, DeadLetter, Delivery, GroupInfo, Published, PullLimit, Start, Subscription, Topic};
use std::time::Duration;

/// The timeout for something that must happen, generous enough for a machine that is busy with other tests.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// How long to check that something does not happen.
pub(super) const WHILE: Duration = Duration::from_millis(60);

/// Waits for a future that must resolve.
pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(SOON, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {SOON:?}"),
    }
}

/// Waits until a condition holds.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The next delivery, which must arrive.
pub(super) async fn next(subscription: &mut Subscription) -> Delivery {
    let next = soon("the next delivery", subscription.next()).await;
    next.expect("the stream continues").expect("the delivery can be read")
}

/// The next deliveries, which must arrive.
pub(super) async fn take(subscription: &mut Subscription, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::with_capacity(count);
    while deliveries.len() < count {
        deliveries.push(next(subscription).await);
    }
    deliveries
}

/// Checks for a short time that no delivery arrives.
pub(super) async fn nothing(subscription: &mut Subscription) {
    if let Ok(next) = tokio::time::timeout(WHILE, subscription.next()).await {
        panic!("expected no delivery, got {next:?}");
    }
}

/// Waits 5 ms for a delivery, which must not arrive, and stops waiting, like a member that polls several sources in turn.
pub(super) async fn wait_briefly_without_a_delivery(subscription: &mut Subscription) {
    if let Ok(next) = tokio::time::timeout(Duration::from_millis(5), subscription.next()).await {
        panic!("expected no delivery, got {next:?}");
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

/// Acks and waits until the ack is durable. It must not be stale.
pub(super) async fn ack(delivery: &Delivery) {
    let settled = soon("the ack", delivery.ack()).await.expect("acks");
    assert!(!settled.stale, "an ack of {delivery:?} is stale");
}

/// The information about a group.
pub(super) async fn group_info(bus: &Bus, topic: &str, group: &str) -> GroupInfo {
    let groups = bus.groups().await.expect("lists groups");
    let found = groups.into_iter().find(|info| info.topic == topic && info.group == group);
    found.unwrap_or_else(|| panic!("no group {group} on {topic}"))
}

/// The floor of a group that reads one topic.
pub(super) async fn floor(bus: &Bus, topic: &str, group: &str) -> u64 {
    group_info(bus, topic, group).await.topics[0].floor
}

/// Waits until a group's floor is `wanted`.
pub(super) async fn until_floor(bus: &Bus, topic: &str, group: &str, wanted: u64) {
    until(&format!("floor {wanted}"), || async { floor(bus, topic, group).await == wanted }).await;
}

/// Waits until no event of a group is leased.
pub(super) async fn until_nothing_in_flight(bus: &Bus, topic: &str, group: &str) {
    until("the end of the leases", || async { group_info(bus, topic, group).await.in_flight == 0 }).await;
}

/// A topic's name.
pub(super) fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

/// The payloads of a topic; none if the topic does not exist.
pub(super) async fn payloads(bus: &Bus, name: &str) -> Vec<String> {
    match bus.read(&topic(name), Start::Earliest, PullLimit::default()).await {
        Ok(page) => page.events.iter().map(|event| event.payload().to_owned()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Waits until a topic has `count` dead letters, and checks that it has no more.
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
