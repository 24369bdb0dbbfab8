//! Tests of patterns and filters in replay, export and subscriptions.

use super::subscribe::Source;
use super::{Rig, request};
use axum::body::Body;
use prombus::PublishOptions;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Publishes a number with a key, a tag and a header.
async fn publish(rig: &Rig, topic: &str, number: i64, key: &str, tag: &str, header: &str) {
    let mut batch = rig.bus.batch();
    let options = PublishOptions {
        ts: Some(number),
        key: Some(key.to_owned()),
        tags: vec![tag.to_owned()],
        headers: [("x-part".to_owned(), header.to_owned())].into_iter().collect(),
        ..PublishOptions::default()
    };
    batch.push(topic, &number, &options).expect("an event");
    rig.bus.publish_batch(batch).await.expect("published");
}

fn numbers(events: &Value) -> Vec<i64> {
    let events = events.as_array().expect("a list").iter();
    events.map(|event| event["payload"].as_i64().expect("a number")).collect()
}

/// The numbers, sorted because events of the same millisecond come in the order of their topics.
fn sorted(events: &Value) -> Vec<i64> {
    let mut numbers = numbers(events);
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn replay_pages_of_a_pattern_have_every_event_once() {
    let rig = Rig::open();
    for number in 0..60 {
        rig.fill(&format!("t.{}", number % 7), number..number + 1).await;
    }
    rig.fill("dlq.t.1", 0..1).await;
    rig.fill("u", 0..1).await;
    let mut seen = BTreeSet::new();
    let mut path = "/replay?topic=t.*&limit=7".to_owned();
    let position = loop {
        let page = rig.get(&path).await.ok();
        assert_eq!(page["topic"], "t.*");
        for number in numbers(&page["events"]) {
            assert!(seen.insert(number), "{number} was returned twice");
        }
        let Some(next) = page["next"].as_str() else {
            break page["position"].as_str().expect("a place").to_owned();
        };
        assert_eq!(page["position"], next);
        path = format!("/replay?topic=t.*&limit=7&from=afterId&afterId={next}");
    };
    assert_eq!(seen.len(), 60);
    // No events follow the last position. Later it is followed only by new events, including those of a new topic.
    let path = format!("/replay?topic=t.*&from=afterId&afterId={position}");
    assert_eq!(rig.get(&path).await.ok()["count"], 0);
    rig.fill("t.new", 100..102).await;
    assert_eq!(numbers(&rig.get(&path).await.ok()["events"]), [100, 101]);
    // A position of the pattern also works for one topic, and the id of an event also works for a pattern.
    let path = format!("/replay?topic=t.new&from=afterId&afterId={position}");
    let page = rig.get(&path).await.ok();
    assert_eq!(numbers(&page["events"]), [100, 101]);
    let id = page["events"][0]["id"].as_str().expect("an id");
    let path = format!("/replay?topic=t.*&from=afterId&afterId={id}");
    assert_eq!(numbers(&rig.get(&path).await.ok()["events"]), [101]);
    // With both time bounds.
    let page = rig.get("/replay?topic=t.*&from=ts&ts=50&toTs=52").await.ok();
    assert_eq!(sorted(&page["events"]), [50, 51, 52]);
}

#[tokio::test]
async fn filters_work_as_for_groups() {
    let rig = Rig::open();
    for number in 0..20 {
        let (key, tag) =
            (if number % 2 == 0 { "even" } else { "odd" }, if number < 10 { "low" } else { "high" });
        publish(&rig, &format!("t.{}", number % 3), number, key, tag, &(number % 5).to_string()).await;
    }
    for (filter, expected) in [
        ("key=odd&tag=low", vec![1, 3, 5, 7, 9]),
        ("header=x-part:3", vec![3, 8, 13, 18]),
        ("header=x-part:3&key=even", vec![8, 18]),
        ("header=x-part:3&header=y:1", vec![]),
        ("tag=none", vec![]),
    ] {
        for topic in ["t.*", "t.0"] {
            let wanted: Vec<i64> =
                expected.iter().copied().filter(|number| topic == "t.*" || number % 3 == 0).collect();
            let page = rig.get(&format!("/replay?topic={topic}&{filter}")).await.ok();
            assert_eq!(sorted(&page["events"]), wanted, "{topic} {filter}");
            let exported = rig.get(&format!("/export?topic={topic}&ndjson=0&{filter}")).await.ok();
            assert_eq!(sorted(&exported), wanted, "{topic} {filter}");
        }
    }
    let mut source = Source::open(&rig, "/subscribe/t.0?from=earliest&key=odd").await;
    assert_eq!(source.next().await.expect("an event")["payload"], 3);
    let page = rig.get("/replay?topic=t.0&from=latest&limit=2&key=odd").await.ok();
    assert_eq!(numbers(&page["events"]), [9, 15]);
}

#[tokio::test]
async fn export_of_a_pattern_has_its_topics_and_no_dead_letters() {
    let rig = Rig::open();
    for topic in ["a.b", "a", "a.b.c", "dlq.a", "b"] {
        rig.fill(topic, 0..3).await;
    }
    let topics = async |pattern: &str| -> BTreeSet<String> {
        let lines = rig.get(&format!("/export?topic={pattern}")).await.lines();
        lines.iter().map(|event| event["topic"].as_str().expect("a topic").to_owned()).collect()
    };
    assert_eq!(topics("a.**").await, ["a", "a.b", "a.b.c"].map(str::to_owned).into());
    assert_eq!(topics("*").await, ["a", "b"].map(str::to_owned).into());
    assert_eq!(topics("dlq.**").await, ["dlq.a"].map(str::to_owned).into());
    assert_eq!(rig.get("/export?topic=**").await.lines().len(), 12);
    assert_eq!(rig.get("/export?topic=**&fromTs=1&toTs=1").await.lines().len(), 4);
    assert_eq!(rig.get("/export?topic=none.*&ndjson=0").await.ok(), json!([]));
}

#[tokio::test]
async fn a_pattern_needs_access_to_all_of_its_topics() {
    let rig = Rig::with_tokens(&[("part", &["subscribe:t.a", "subscribe:t.b"]), ("all", &["subscribe:t.*"])]);
    let as_token = |path: &str, token: &str| {
        let request = request("GET", path).header("authorization", format!("Bearer {token}"));
        request.body(Body::empty()).expect("a request")
    };
    for path in ["/replay?topic=t.*", "/export?topic=t.*", "/subscribe/t.*"] {
        rig.send(as_token(path, "part")).await.error(403, "forbidden");
        assert_eq!(rig.start(as_token(path, "all")).await.status(), 200, "{path}");
    }
    for path in ["/replay?topic=t.**", "/export?topic=**", "/subscribe/dlq.t.*"] {
        rig.send(as_token(path, "all")).await.error(403, "forbidden");
    }
}

#[tokio::test]
async fn the_tail_of_a_pattern_resumes_anywhere_while_events_are_published() {
    let rig = Rig::open();
    rig.fill("t.0", 0..5).await;
    let mut source = Source::open(&rig, "/subscribe/t.*").await;
    source.has_event_ids = false;
    let mut last_id = source.first_id().await;
    drop(source);
    let bus = rig.bus.clone();
    let publisher = tokio::spawn(async move {
        for number in 0..600_i64 {
            let mut batch = bus.batch();
            for topic in [number % 3, number % 7, number / 100] {
                let topic = format!("t.{topic}");
                batch.push(&topic, &number, &PublishOptions::default()).expect("an event");
            }
            bus.publish_batch(batch).await.expect("published");
            if number % 10 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    });
    let mut seen = BTreeSet::new();
    let mut cut = 1;
    while seen.len() < 1_800 {
        let resumed = request("GET", "/subscribe/t.*").header("last-event-id", &last_id);
        let mut source = Source::new(rig.start(resumed.body(Body::empty()).expect("a request")).await);
        source.has_event_ids = false;
        cut = (cut * 7 + 3) % 100;
        for _ in 0..=cut {
            if seen.len() == 1_800 {
                break;
            }
            let event = source.next().await.expect("an event");
            let place = (event["topic"].to_string(), event["seq"].as_u64());
            assert!(seen.insert(place.clone()), "{place:?} was returned twice");
        }
        last_id = source.last_id.clone().expect("an id");
        assert!(last_id.len() < 50, "{last_id}");
    }
    publisher.await.expect("published");
}
