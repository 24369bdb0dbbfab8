//! Snapshots of compacted topics.

use prombus::state::{MARKER_TAG, SnapshotMarker, take_snapshot};
use prombus::{Bus, Topic};
use std::collections::BTreeMap;

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
async fn a_snapshot_has_what_changed_and_a_marker_behind_it() {
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
async fn a_large_snapshot_goes_in_pieces_and_one_that_was_interrupted_is_made_up_for() {
    let bus = Bus::memory();
    let (kv, snapshots) = (topic("kv"), topic("kv.snapshot"));
    for number in 0..5_000u32 {
        bus.publish("kv", &number).key(format!("k{}", number % 2_500)).send().await.expect("publishes");
    }
    // As after a crash between rows and marker.
    bus.publish_json("kv.snapshot", r#"{"key":"k1","payload":0,"ts":0}"#).key("k1").await.expect("publishes");
    let marker =
        take_snapshot(&**bus.backend(), &kv, &snapshots).await.expect("works").expect("something changed");
    assert_eq!((marker.rows, marker.position.seq), (2_500, 5_000));
    let (rows, _) = snapshot(&bus, "kv.snapshot").await;
    assert_eq!(rows.len(), 2_500);
    assert!(rows["k1"].starts_with(r#"{"key":"k1","payload":2501,"#), "{}", rows["k1"]);
}
