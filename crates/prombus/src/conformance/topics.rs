//! Rules about groups that read several topics, and about patterns.

use super::probe::{ack, group_info, next, nothing, publish, publish_numbers, subscribe, take, until};
use crate::{Bus, Delivery, GroupError, Start};
use std::time::Duration;

/// Topics and payloads of deliveries, sorted.
fn sorted(deliveries: &[Delivery]) -> Vec<String> {
    let mut all: Vec<String> =
        deliveries.iter().map(|delivery| format!("{} {}", delivery.topic(), delivery.payload())).collect();
    all.sort_unstable();
    all
}

/// A group may read several topics, each in the order of its seqs and with a floor of its own.
pub async fn a_group_reads_several_topics_each_in_order(bus: Bus) {
    let group = bus.subscribe("a", "g").topics(["b", "c"]).from_earliest();
    let mut group = group.await.expect("subscribes");
    for name in ["a", "b", "c", "d"] {
        publish_numbers(&bus, name, 3).await;
    }
    let all = take(&mut group, 9).await;
    nothing(&mut group).await;
    for name in ["a", "b", "c"] {
        let of_topic = all.iter().filter(|it| it.topic().as_str() == name);
        assert_eq!(of_topic.map(|it| it.seq()).collect::<Vec<_>>(), [1, 2, 3], "{name}");
    }
    for delivery in all.iter().filter(|it| it.topic().as_str() == "b") {
        ack(delivery).await;
    }
    let info = group_info(&bus, "a", "g").await;
    let mut floors: Vec<_> = info.topics.iter().map(|it| (it.topic.as_str(), it.floor)).collect();
    floors.sort_unstable();
    assert_eq!(floors, [("a", 0), ("b", 3), ("c", 0)]);
}

/// `*` matches one segment.
pub async fn a_star_matches_one_segment(bus: Bus) {
    for name in ["a.b", "a.c", "a", "a.b.c", "b.b"] {
        publish(&bus, name, 1).await;
    }
    let mut group = subscribe(&bus, "a.*", "g").await;
    assert_eq!(sorted(&take(&mut group, 2).await), ["a.b 1", "a.c 1"]);
    nothing(&mut group).await;
}

/// `**` matches any number of segments, including none.
pub async fn two_stars_match_any_number_of_segments(bus: Bus) {
    for name in ["a.b", "a", "a.b.c", "b.b"] {
        publish(&bus, name, 1).await;
    }
    let mut below = subscribe(&bus, "a.**", "g").await;
    assert_eq!(sorted(&take(&mut below, 3).await), ["a 1", "a.b 1", "a.b.c 1"]);
    nothing(&mut below).await;
    let mut all = subscribe(&bus, "**", "g").await;
    assert_eq!(sorted(&take(&mut all, 4).await), ["a 1", "a.b 1", "a.b.c 1", "b.b 1"]);
    nothing(&mut all).await;
}

/// A topic that is created later is read from its first event, also by a group that started at `latest`, and also if the
/// group has no members when the topic is created.
pub async fn a_topic_created_later_is_read_from_its_first_event(bus: Bus) {
    publish(&bus, "a.old", 1).await;
    let mut group = bus.subscribe("a.*", "g").await.expect("subscribes");
    publish_numbers(&bus, "a.new", 3).await;
    assert_eq!(sorted(&take(&mut group, 3).await), ["a.new 1", "a.new 2", "a.new 3"]);
    group.unsubscribe().await.expect("leaves");
    publish(&bus, "a.newer", 1).await;
    let mut group = bus.subscribe("a.*", "g").await.expect("subscribes");
    let again = sorted(&take(&mut group, 4).await);
    assert_eq!(again, ["a.new 1", "a.new 2", "a.new 3", "a.newer 1"]);
    nothing(&mut group).await;
}

/// A waiting member of a pattern group is woken by the first event of a new topic.
pub async fn a_pattern_wakes_a_member_for_a_new_topic(bus: Bus) {
    let mut group = bus.subscribe("a.*", "g").await.expect("subscribes");
    let waiting = tokio::spawn(async move { sorted(&[next(&mut group).await]) });
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    publish(&bus, "a.new", 1).await;
    assert_eq!(super::probe::soon("the event", waiting).await.expect("no panic"), ["a.new 1"]);
}

/// Only patterns that begin with `dlq.` match dead-letter topics.
pub async fn dead_letter_topics_match_only_patterns_that_name_them(bus: Bus) {
    for name in ["a", "dlq.a", "dlq.b.c"] {
        publish(&bus, name, 1).await;
    }
    let mut all = subscribe(&bus, "**", "g").await;
    assert_eq!(sorted(&take(&mut all, 1).await), ["a 1"]);
    nothing(&mut all).await;
    let mut starred = subscribe(&bus, "*.a", "g").await;
    nothing(&mut starred).await;
    let mut letters = subscribe(&bus, "dlq.**", "g").await;
    assert_eq!(sorted(&take(&mut letters, 2).await), ["dlq.a 1", "dlq.b.c 1"]);
    let mut one = subscribe(&bus, "dlq.*", "g").await;
    assert_eq!(sorted(&take(&mut one, 1).await), ["dlq.a 1"]);
    nothing(&mut one).await;
}

/// An event that matches two entries of a subscription is delivered only one time.
pub async fn an_event_that_two_patterns_match_is_delivered_once(bus: Bus) {
    publish(&bus, "a.b", 1).await;
    let group = bus.subscribe("a.*", "g").topics(["a.b", "**"]).from_earliest();
    let mut group = group.await.expect("subscribes");
    next(&mut group).await;
    nothing(&mut group).await;
}

/// All members of a group read the same topics.
pub async fn a_member_with_other_topics_gets_a_conflict(bus: Bus) {
    let group = |topics: &[&'static str]| bus.subscribe("a", "g").topics(topics.iter().copied());
    group(&["b", "c"]).await.expect("subscribes");
    for other in [&[][..], &["b"], &["b", "d"], &["b", "c", "d"]] {
        let refused = group(other).await.expect_err("another list of topics");
        assert!(matches!(refused, GroupError::Conflict { .. }), "{refused}");
        assert!(refused.to_string().contains("list of topics"), "{refused}");
    }
    let same = group(&["c", "b"]).await.expect("the order does not matter");
    assert!(!same.created());
    assert_eq!(bus.groups().await.expect("lists groups").len(), 1);
}

/// `afterId` with several topics starts after the event in the topic of the event, and at the event's `ts` in the others.
pub async fn after_id_starts_other_topics_at_the_ts_of_the_event(bus: Bus) {
    let mut ids = Vec::new();
    for (name, ts) in [("a", 1_000), ("b", 1_500), ("a", 2_000), ("b", 2_500), ("a", 3_000)] {
        ids.push(bus.publish(name, &ts).ts(ts).await.expect("publishes").id);
    }
    let group = bus.subscribe("a", "g").topics(["b"]).from(Start::AfterId(ids[2]));
    let mut group = group.await.expect("subscribes");
    assert_eq!(sorted(&take(&mut group, 2).await), ["a 3000", "b 2500"]);
    nothing(&mut group).await;
}

/// A group that has fallen behind gets the events of its topics in commit order: it does not have to catch up with a busy
/// topic before it gets events of the other topics.
pub async fn topics_of_a_group_are_read_in_commit_order(bus: Bus) {
    publish_numbers(&bus, "busy", 100).await;
    // Commit times have a resolution of a millisecond.
    tokio::time::sleep(Duration::from_millis(5)).await;
    publish(&bus, "quiet", 1).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    publish_numbers(&bus, "busy", 100).await;
    let group = bus.subscribe("*", "g").from_earliest().batch_size(10);
    let mut group = group.await.expect("subscribes");
    let early = take(&mut group, 120).await;
    let quiet = early.iter().position(|it| it.topic().as_str() == "quiet");
    assert_eq!(quiet, Some(100), "the quiet topic's event comes between those of the busy one");
    let lag = || async { group_info(&bus, "*", "g").await.lag == 201 };
    until("the lag of all topics", lag).await;
}
