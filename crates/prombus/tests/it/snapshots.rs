//! Snapshots of compacted topics.

use prombus::engine::LogEngine;
use prombus::state::{MARKER_TAG, SnapshotError, SnapshotMarker, take_snapshot};
use prombus::{Backend as _, Bus, Clock, Limits, LocalBackend, ManualClock, Topic, TopicOptions, TopicRule};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

/// The rows of a snapshot topic and its newest marker.
async fn snapshot(bus: &Bus, name: &str) -> (BTreeMap<String, String>, Option<SnapshotMarker>) {
    let state = bus.load_state(name).await.expect("loads");
    let marker = state.get(name).map(|event| {
        assert!(event.has_tag(MARKER_TAG));
        event.json().expect("a marker")
    });
    let rows = state.iter().filter(|(key, _)| *key != name);
    (rows.map(|(key, event)| (key.to_owned(), event.payload().to_owned())).collect(), marker)
}

#[tokio::test]
async fn a_snapshot_contains_the_changes_followed_by_a_marker() {
    let bus = Bus::memory();
    let (kv, snapshots) = (topic("kv"), topic("kv.snapshot"));
    assert_eq!(
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.err().map(|it| it.to_string()),
        Some("there is no topic \"kv\"".into())
    );
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        bus.publish("kv", value).key(key).ts(7).await.expect("publishes");
    }
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!((marker.position.seq, marker.keys, marker.rows, marker.topic.as_str()), (3, 2, 2, "kv"));
    let (rows, newest) = snapshot(&bus, "kv.snapshot").await;
    assert_eq!(rows["a"], r#"{"key":"a","payload":"3","ts":7}"#);
    assert_eq!((rows.len(), newest), (2, Some(marker)));
    // Nothing changed: nothing is published.
    assert_eq!(take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works"), None);
    bus.publish_json("kv", "null").key("b").await.expect("publishes");
    bus.publish("kv", "4").key("c").ts(8).await.expect("publishes");
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!((marker.position.seq, marker.keys, marker.rows), (5, 2, 2));
    let (rows, _) = snapshot(&bus, "kv.snapshot").await;
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["a", "c"], "b is deleted there too");
}

#[tokio::test]
async fn a_large_snapshot_has_several_batches_and_an_interrupted_one_is_repeated() {
    let bus = Bus::memory();
    let (kv, snapshots) = (topic("kv"), topic("kv.snapshot"));
    for number in 0..5_000u32 {
        bus.publish("kv", &number).key(format!("k{}", number % 2_500)).send().await.expect("publishes");
    }
    // As after a crash between the rows and the marker.
    bus.publish_json("kv.snapshot", r#"{"key":"k1","payload":0,"ts":0}"#).key("k1").await.expect("publishes");
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!((marker.rows, marker.position.seq), (2_500, 5_000));
    let (rows, _) = snapshot(&bus, "kv.snapshot").await;
    assert_eq!(rows.len(), 2_500);
    assert!(rows["k1"].starts_with(r#"{"key":"k1","payload":2501,"#), "{}", rows["k1"]);
}

#[tokio::test]
async fn a_recreated_topic_has_only_its_new_keys_in_its_snapshots() {
    let bus = Bus::memory();
    let (kv, snapshots) = (topic("kv"), topic("kv.snapshot"));
    for key in ["old", "both"] {
        bus.publish("kv", "1").key(key).ts(7).await.expect("publishes");
    }
    take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    bus.delete_topic(&kv).await.expect("deletes");
    // More events than before: the position of the last marker would hide the first ones.
    for key in ["first", "both", "third"] {
        bus.publish("kv", "2").key(key).ts(8).await.expect("publishes");
    }
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!((marker.position.seq, marker.rows), (3, 3));
    let (rows, _) = snapshot(&bus, "kv.snapshot").await;
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["both", "first", "third"]);
    assert_eq!(rows["both"], r#"{"key":"both","payload":"2","ts":8}"#);
    assert_eq!(take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works"), None);
}

#[tokio::test]
async fn an_event_as_large_and_deep_as_allowed_is_in_the_snapshot() {
    let bus = Bus::memory();
    let (kv, snapshots) = (topic("kv"), topic("kv.snapshot"));
    let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    bus.publish_json("kv", large.as_str()).key("large").await.expect("publishes");
    bus.publish_json("kv", deep.as_str()).key("deep").await.expect("publishes");
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!(marker.rows, 2);
    let (rows, _) = snapshot(&bus, "kv.snapshot").await;
    assert!(rows["large"].contains(&large) && rows["deep"].contains(&deep));
}

#[tokio::test]
async fn two_topics_do_not_share_a_snapshot_topic() {
    let bus = Bus::memory();
    let snapshots = topic("snapshots");
    for name in ["one", "two"] {
        bus.publish(name, "1").key("k").await.expect("publishes");
    }
    take_snapshot(&**bus.backend(), &topic("one"), &snapshots).await.expect("works");
    let taken = take_snapshot(&**bus.backend(), &topic("two"), &snapshots).await;
    assert!(matches!(taken, Err(SnapshotError::Taken { .. })), "{taken:?}");
}

/// Bounded memory: loading a large state fails with an error, and smaller topics still work.
#[tokio::test]
async fn a_topic_with_too_many_keys_is_refused_and_others_are_not() {
    let bus = Bus::builder().state_memory_bytes(20_000).memory().expect("opens");
    for number in 0..1_000 {
        bus.publish("large", &number).key(format!("k{number}")).await.expect("publishes");
    }
    bus.publish("small", &1).key("k").await.expect("publishes");
    for _ in 0..2 {
        let refused = bus.load_state("large").await.err();
        assert!(matches!(refused, Some(prombus::ReadError::TooManyKeys { .. })), "{refused:?}");
    }
    assert_eq!(bus.load_state("small").await.expect("loads").len(), 1);
    assert!(bus.backend().figures().state_memory_bytes <= 20_000);
}

/// The topic is created between two rounds of maintenance: its first snapshot is due one interval after its first event.
#[test]
fn the_first_snapshot_of_a_topic_is_not_late() {
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(LogEngine::in_memory(1 << 20, Arc::clone(&shared)).expect("opens"));
    let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
    let options =
        TopicOptions { compaction: Some(true), snapshot_interval_ms: Some(500), ..TopicOptions::default() };
    backend.set_topic_rules(vec![TopicRule::new("kv", options).expect("a good rule")]);
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    crate::rig::run_maintenance(&backend);
    clock.advance_ms(1_000);
    let mut publishing = bus.publish("kv", "1").key("k").send();
    assert!(crate::rig::poll(&mut publishing).is_ready());
    clock.advance_ms(300);
    let wait_ms = crate::rig::run_maintenance(&backend);
    assert!(backend.topic("kv.snapshot").is_none());
    assert_eq!(wait_ms, 200);
    clock.advance_ms(200);
    crate::rig::run_maintenance(&backend);
    assert!(backend.topic("kv.snapshot").is_some());
}

#[tokio::test]
async fn a_new_topic_with_snapshots_wakes_maintenance() {
    let options =
        TopicOptions { compaction: Some(true), snapshot_interval_ms: Some(200), ..TopicOptions::default() };
    let rule = TopicRule::new("kv", options).expect("a good rule");
    let bus = Bus::builder().topics(vec![rule]).memory().expect("opens");
    // By then the first round of maintenance is over, and the next one is 5 s away.
    tokio::time::sleep(Duration::from_millis(500)).await;
    bus.publish("kv", "1").key("k").await.expect("publishes");
    let published = Instant::now();
    while bus.backend().topic("kv.snapshot").is_none() {
        assert!(published.elapsed() < Duration::from_millis(3_500), "no snapshot was published in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(published.elapsed() >= Duration::from_millis(190), "{:?}", published.elapsed());
}
