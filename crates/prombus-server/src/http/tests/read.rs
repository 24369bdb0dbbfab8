//! Tests of replay and export.

use super::{Answer, Rig, get, request};
use axum::body::Body;
use http_body_util::BodyExt as _;
use prombus::PublishOptions;
use serde_json::{Value, json};

fn seqs(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["seq"].as_u64().expect("a seq")).collect()
}

fn replayed(answer: &Answer) -> (Vec<u64>, Value) {
    let json = answer.ok();
    let events = json["events"].as_array().expect("a list");
    assert_eq!(json["count"], json!(events.len()));
    (seqs(events), json["next"].clone())
}

#[tokio::test]
async fn replay_continues_after_next_to_the_end() {
    let rig = Rig::open();
    rig.fill("t", 0..25).await;
    let mut seen = Vec::new();
    let mut path = "/replay?topic=t&limit=10".to_owned();
    loop {
        let (page, next) = replayed(&rig.get(&path).await);
        seen.extend(page);
        let Some(next) = next.as_str() else { break };
        path = format!("/replay?topic=t&limit=10&from=afterId&afterId={next}");
    }
    assert_eq!(seen, (1..=25).collect::<Vec<_>>());
    // A full last page has no next.
    assert_eq!(replayed(&rig.get("/replay?topic=t&limit=25").await).1, Value::Null);
    let text = String::from_utf8(rig.get("/replay?topic=t&limit=1").await.body.to_vec()).expect("text");
    assert!(text.starts_with("{\"topic\":\"t\",\"events\":[{\"id\":"), "{text}");
}

#[tokio::test]
async fn replay_by_time_skips_older_events_also_after_newer_ones() {
    let rig = Rig::open();
    rig.fill("t", 0..10).await;
    rig.fill("t", 3..7).await;
    let (page, next) = replayed(&rig.get("/replay?topic=t&from=ts&ts=5").await);
    assert_eq!((page, next), (vec![6, 7, 8, 9, 10, 13, 14], Value::Null));
    let (page, next) = replayed(&rig.get("/replay?topic=t&from=ts&ts=5&limit=2").await);
    assert!(page == [6, 7] && next.is_string());
}

#[tokio::test]
async fn replay_of_an_unknown_topic_is_empty_and_of_an_unknown_id_404() {
    let rig = Rig::open();
    let empty = rig.get("/replay?topic=none").await.ok();
    assert_eq!(empty, json!({"topic": "none", "events": [], "count": 0, "next": null}));
    rig.fill("t", 0..1).await;
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    for topic in ["t", "none"] {
        let path = format!("/replay?topic={topic}&from=afterId&afterId={id}");
        rig.get(&path).await.error(404, "unknown_id");
    }
}

#[tokio::test]
async fn bad_values_are_named() {
    let rig = Rig::open();
    assert_eq!(rig.get("/replay").await.error(400, "bad_request"), "topic required");
    assert_eq!(rig.get("/export?topic=").await.error(400, "bad_request"), "topic required");
    rig.get("/replay?topic=a..b").await.error(400, "bad_topic");
    rig.get("/export?topic=a.b*").await.error(400, "bad_topic");
    for (path, name) in [
        ("/replay?topic=t&limit=abc", "limit"),
        ("/replay?topic=t&limit=0", "limit"),
        ("/replay?topic=t&limit=1000001", "limit"),
        ("/replay?topic=t&limit=1&limit=2", "limit"),
        ("/replay?topic=t.*&from=latest", "from"),
        ("/replay?topic=t.*&fromSeq=1", "fromSeq"),
        ("/replay?topic=t.*&order=desc", "order"),
        ("/replay?topic=t&order=up", "order"),
        ("/replay?topic=t&fromSeq=0", "fromSeq"),
        ("/replay?topic=t&toTs=tomorrow", "toTs"),
        ("/replay?topic=t&header=x", "header"),
        ("/replay?topic=t&header=:x", "header"),
        ("/replay?topic=t&header=a:1&header=a:2", "header"),
        ("/replay?topic=t&tag=a&tag=b", "tag"),
        ("/export?topic=t&key=a&key=b", "key"),
        ("/replay?topic=t&from=afterId&afterId=p1.1.2", "afterId"),
        ("/replay?topic=t&from=x", "from"),
        ("/replay?topic=t&from=ts", "ts"),
        ("/replay?topic=t&from=ts&ts=1.5", "ts"),
        ("/replay?topic=t&from=afterId", "afterId"),
        ("/replay?topic=t&from=afterId&afterId=7", "afterId"),
        ("/export?topic=t&fromTs=x", "fromTs"),
        ("/export?topic=t&toTs=", "toTs"),
        ("/export?topic=t&ndjson=2", "ndjson"),
        ("/export?topic=t&topic=u", "topic"),
    ] {
        let message = rig.get(path).await.error(400, "bad_request");
        assert!(message.contains(&format!("\"{name}\"")), "{path}: {message}");
    }
}

#[tokio::test]
async fn export_has_every_event_once_in_order_although_half_share_one_ts() {
    let rig = Rig::open();
    let mut batch = rig.bus.batch();
    for number in 0..20_000_i64 {
        let ts = if (5_000..15_000).contains(&number) { 5_000 } else { number };
        let options = PublishOptions { ts: Some(ts), ..PublishOptions::default() };
        batch.push("t", &number, &options).expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");

    let answer = rig.get("/export?topic=t").await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let payloads: Vec<i64> =
        answer.lines().iter().map(|event| event["payload"].as_i64().expect("a number")).collect();
    assert_eq!(payloads, (0..20_000).collect::<Vec<_>>());

    let answer = rig.get("/export?topic=t&ndjson=0").await.ok();
    assert_eq!(seqs(answer.as_array().expect("a list")), (1..=20_000).collect::<Vec<_>>());
    assert_eq!(rig.get("/export?topic=t&fromTs=5000&toTs=5000").await.lines().len(), 10_000);
    assert_eq!(rig.get("/export?topic=t&fromTs=5001").await.lines().len(), 5_000);
    assert_eq!(rig.get("/export?topic=t&toTs=4999").await.lines().len(), 5_000);
    let all = rig.get("/replay?topic=t&limit=1000000").await;
    assert_eq!(replayed(&all).0, (1..=20_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_empty_export_is_valid() {
    let rig = Rig::open();
    assert_eq!(rig.get("/export?topic=none").await.lines().len(), 0);
    assert_eq!(rig.get("/export?topic=none&ndjson=0").await.ok(), json!([]));
    rig.fill("t", 0..5).await;
    assert_eq!(rig.get("/export?topic=t&fromTs=9&ndjson=0").await.ok(), json!([]));
    assert_eq!(rig.get("/export?topic=t&fromTs=3&toTs=2&ndjson=0").await.ok(), json!([]));
}

#[tokio::test]
async fn export_comes_in_pieces_and_ends_at_the_newest_event_at_its_start() {
    let rig = Rig::open();
    let payload = "x".repeat(10_000);
    let publish = async || {
        let mut batch = rig.bus.batch();
        for _ in 0..200 {
            batch.push("t", payload.as_str(), &PublishOptions::default()).expect("an event");
        }
        rig.bus.publish_batch(batch).await.expect("published");
    };
    publish().await;
    let mut body = rig.start(get("/export?topic=t")).await.into_body();
    publish().await;
    let (mut frames, mut bytes) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.expect("a frame").into_data().expect("data");
        assert!(data.len() < 600_000, "{}", data.len());
        frames += 1;
        bytes.extend_from_slice(&data);
    }
    assert!(frames > 3, "{frames}");
    assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 200);
}

#[tokio::test]
async fn a_response_that_cannot_continue_is_aborted() {
    let payload = "x".repeat(100_000);
    for path in ["/export?topic=t", "/replay?topic=t"] {
        let rig = Rig::open();
        for _ in 0..20 {
            rig.bus.publish("t", payload.as_str()).await.expect("published");
        }
        let mut body = rig.start(get(path)).await.into_body();
        body.frame().await.expect("a frame").expect("data");
        rig.bus.close().await.expect("closed");
        let mut last = None;
        while let Some(frame) = body.frame().await {
            last = Some(frame);
        }
        assert!(last.expect("a frame").is_err(), "{path}");
        rig.get(path).await.error(503, "unavailable");
    }
}

#[tokio::test]
async fn responses_are_compressed_on_request() {
    let rig = Rig::open();
    rig.fill("t", 0..5_000).await;
    let plain = rig.get("/export?topic=t").await;
    assert!(!plain.headers.contains_key("content-encoding"));
    for (encoding, magic) in [("gzip", &[0x1f, 0x8b][..]), ("zstd", &[0x28, 0xb5, 0x2f, 0xfd])] {
        for path in ["/export?topic=t", "/export?topic=t&ndjson=0", "/replay?topic=t"] {
            let request = request("GET", path).header("accept-encoding", encoding);
            let answer = rig.send(request.body(Body::empty()).expect("a request")).await;
            assert_eq!(answer.headers["content-encoding"], encoding);
            assert!(answer.body.starts_with(magic) && answer.body.len() < plain.body.len() / 3);
        }
    }
}

#[tokio::test]
async fn replay_returns_the_last_events_or_the_newest_first() {
    let rig = Rig::open();
    rig.fill("t", 0..1_000).await;
    let last = async |query: &str| replayed(&rig.get(&format!("/replay?topic=t&{query}")).await);
    assert_eq!(last("from=latest&limit=3").await, (vec![998, 999, 1000], Value::Null));
    assert_eq!(last("from=latest&limit=3&order=desc").await.0, [1000, 999, 998]);
    assert_eq!(last("order=desc&limit=2").await.0, [1000, 999]);
    assert_eq!(last("from=latest&limit=1000000").await.0, (1..=1000).collect::<Vec<_>>());
    assert_eq!(last("order=desc&limit=1000000").await, ((1..=1000).rev().collect::<Vec<_>>(), Value::Null));
    // Page by page to the oldest event.
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let (page, next) = last(&format!("order=desc&limit=77{after}")).await;
        seen.extend(page);
        let Some(next) = next.as_str() else { break };
        after = format!("&from=afterId&afterId={next}");
    }
    assert_eq!(seen, (1..=1000).rev().collect::<Vec<_>>());
    // Bounds. In this test, the ts of an event is its seq minus 1.
    assert_eq!(last("fromSeq=999").await.0, [999, 1000]);
    assert_eq!(last("fromSeq=1001").await.0, Vec::<u64>::new());
    assert_eq!(last("fromSeq=998&order=desc").await.0, [1000, 999, 998]);
    assert_eq!(last("from=ts&ts=997&order=desc").await, (vec![1000, 999, 998], Value::Null));
    assert_eq!(last("toTs=2").await.0, [1, 2, 3]);
    assert_eq!(last("toTs=500&from=latest&limit=2").await.0, [500, 501]);
    assert_eq!(last("toTs=500&order=desc&limit=2").await.0, [501, 500]);
    assert_eq!(last("from=latest&fromSeq=999&limit=10").await.0, [999, 1000]);
    for query in ["from=latest", "order=desc", "from=latest&order=desc", "fromSeq=7"] {
        let none = rig.get(&format!("/replay?topic=none&{query}")).await.ok();
        assert_eq!(none, json!({"topic": "none", "events": [], "count": 0, "next": null}), "{query}");
    }
}

#[tokio::test]
async fn large_events_are_replayed_newest_first() {
    let rig = Rig::open();
    let large = "x".repeat(300_000);
    for number in 0..12 {
        let payload = if number % 3 == 0 { large.as_str() } else { "small" };
        rig.bus.publish("t", payload).await.expect("published");
    }
    let page = rig.get("/replay?topic=t&order=desc").await;
    assert_eq!(replayed(&page).0, (1..=12).rev().collect::<Vec<_>>());
    assert_eq!(replayed(&rig.get("/replay?topic=t&from=latest&limit=5").await).0, [8, 9, 10, 11, 12]);
}

#[tokio::test]
async fn times_are_numbers_dates_or_relative_to_now() {
    let rig = Rig::open();
    let now_ms = crate::clock::now_ms();
    let mut batch = rig.bus.batch();
    for ago in [200_000_000, 7_000_000, 3_000_000, 0] {
        let options = PublishOptions { ts: Some(now_ms - ago), ..PublishOptions::default() };
        batch.push("t", &ago, &options).expect("an event");
    }
    rig.bus.publish_batch(batch).await.expect("published");
    let date = prombus_protocol::instant_text(now_ms - 7_000_000);
    for ts in ["-1d", "-7200s", "-120m", "-2h", date.as_str(), &(now_ms - 7_000_000).to_string()] {
        assert_eq!(
            replayed(&rig.get(&format!("/replay?topic=t&from=ts&ts={ts}")).await).0,
            [2, 3, 4],
            "{ts}"
        );
        assert_eq!(rig.get(&format!("/export?topic=t&fromTs={ts}")).await.lines().len(), 3, "{ts}");
    }
    assert_eq!(replayed(&rig.get("/replay?topic=t&toTs=-1h").await).0, [1, 2]);
    assert_eq!(rig.get("/export?topic=t&toTs=-3000000000ms").await.lines().len(), 0);
    assert_eq!(rig.get("/state/t?at=-1d").await.status, 200);
}
