//! Tests of Server-Sent Events.

use super::{Answer, Rig, get, request};
use crate::auth::{JwtKey, JwtOptions};
use crate::options::{Rate, ServerOptions};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body_util::BodyExt as _;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// Reads events as a browser does.
pub(super) struct Source {
    body: Body,
    text: String,
    pub(super) last_id: Option<String>,
    /// Whether the ids are those of events, as for a topic; for a pattern they are positions.
    pub(super) has_event_ids: bool,
}

impl Source {
    pub(super) fn new(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-cache");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self { body: response.into_body(), text: String::new(), last_id: None, has_event_ids: true }
    }

    pub(super) async fn open(rig: &Rig, path: &str) -> Self {
        Self::new(rig.start(get(path)).await)
    }

    /// The next event's record; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name| block.lines().find_map(|line| line.strip_prefix(name));
                // As in a browser, a block without data sets the id too.
                self.last_id = field("id: ").map(str::to_owned).or(self.last_id.take());
                if let Some(data) = field("data: ") {
                    let record: Value = serde_json::from_str(data).expect("a record");
                    if self.has_event_ids {
                        assert_eq!(record["id"].as_str(), self.last_id.as_deref());
                    }
                    return Some(record);
                }
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Option<()> {
        let frame = timeout(Duration::from_secs(10), self.body.frame()).await.expect("something in time")?;
        let data = frame.expect("a frame").into_data().expect("data");
        self.text.push_str(std::str::from_utf8(&data).expect("text"));
        Some(())
    }

    /// The id that comes before the first event.
    pub(super) async fn first_id(&mut self) -> String {
        self.more().await.expect("a greeting");
        let (block, rest) = self.text.split_once("\n\n").expect("a block");
        let id = block.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").to_owned();
        self.text = rest.to_owned();
        self.last_id = Some(id.clone());
        id
    }

    pub(super) async fn seq(&mut self) -> u64 {
        self.next().await.expect("an event")["seq"].as_u64().expect("a seq")
    }
}

fn resumed(id: &str) -> Request {
    request("GET", "/subscribe/t?from=earliest")
        .header("last-event-id", id)
        .body(Body::empty())
        .expect("a request")
}

#[tokio::test]
async fn the_tail_begins_where_it_was_opened() {
    let rig = Rig::open();
    rig.fill("t", 0..5).await;
    let mut tail = Source::open(&rig, "/subscribe/t").await;
    // Published after the response was created, and before its body is read.
    rig.fill("t", 5..7).await;
    assert_eq!((tail.seq().await, tail.seq().await), (6, 7));
    let mut earliest = Source::open(&rig, "/subscribe/t?from=earliest").await;
    assert_eq!((earliest.seq().await, earliest.seq().await), (1, 2));
    let mut by_time = Source::open(&rig, "/subscribe/t?from=ts&ts=3").await;
    assert_eq!(by_time.seq().await, 4);
    let id = by_time.last_id.expect("an id");
    let mut after = Source::open(&rig, &format!("/subscribe/t?from=afterId&afterId={id}")).await;
    assert_eq!(after.seq().await, 5);
    let mut after = Source::open(&rig, &format!("/subscribe/t?lastEventId={id}")).await;
    assert_eq!(after.seq().await, 5);
}

#[tokio::test]
async fn the_first_bytes_come_at_once() {
    let rig = Rig::open();
    let mut body = rig.start(get("/subscribe/none")).await.into_body();
    let hello = body.frame().await.expect("a frame").expect("data").into_data().expect("data");
    assert!(hello.starts_with(b"retry: 1000\nid: p1."), "{hello:?}");
    assert!(hello.ends_with(b"\n: connected\n\n"), "{hello:?}");
}

#[tokio::test]
async fn a_tail_waits_for_a_topic_that_does_not_exist_yet() {
    let rig = Rig::open();
    let mut tail = Source::open(&rig, "/subscribe/t").await;
    assert!(timeout(Duration::from_millis(50), tail.next()).await.is_err());
    rig.fill("t", 0..1).await;
    assert_eq!(tail.seq().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resuming_has_no_gap_and_no_duplicate_while_events_are_published() {
    const COUNT: u64 = 3_000;
    let rig = Rig::open();
    let bus = rig.bus.clone();
    let publisher = tokio::spawn(async move {
        for number in 0..COUNT {
            bus.publish("t", &number).await.expect("published");
            if number % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let mut source = Source::open(&rig, "/subscribe/t?from=earliest").await;
    let mut expected = 1;
    while expected <= COUNT {
        // The connection breaks after a varying number of events.
        for _ in 0..(expected % 97 + 1).min(COUNT + 1 - expected) {
            assert_eq!(source.seq().await, expected);
            expected += 1;
        }
        let id = source.last_id.clone().expect("an id");
        source = Source::new(rig.start(resumed(&id)).await);
    }
    publisher.await.expect("published");
    assert!(timeout(Duration::from_millis(50), source.next()).await.is_err());
}

#[tokio::test]
async fn events_over_the_rate_wait_and_are_delivered() {
    let mut options = ServerOptions::default();
    options.rates.connection_deliver = Some(Rate { per_second: 100.0, burst: 5.0 });
    let rig = Rig::with(options);
    rig.fill("t", 0..25).await;
    let started = std::time::Instant::now();
    let mut source = Source::open(&rig, "/subscribe/t?from=earliest").await;
    for expected in 1..=25 {
        assert_eq!(source.seq().await, expected);
    }
    assert!(started.elapsed() >= Duration::from_millis(180), "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_tail_ends_when_the_server_stops() {
    let rig = Rig::open();
    let mut tail = Source::open(&rig, "/subscribe/t").await;
    rig.stop.send_replace(Some(crate::shutdown::StopReason::Shutdown));
    assert_eq!(tail.next().await, None);
    let mut closed = Source::open(&rig, "/subscribe/t").await;
    assert_eq!(closed.next().await, None);
}

#[tokio::test]
async fn the_tail_ends_when_the_token_expires() {
    let mut options = ServerOptions::default();
    options.auth.jwt = Some(JwtOptions {
        keys: vec![JwtKey::Secret("0123456789abcdef0123456789abcdef".to_owned())],
        issuer: None,
        audience: None,
        leeway: Duration::ZERO,
    });
    let rig = Rig::with(options);
    let now = crate::clock::now_ms() / 1000;
    let claims = json!({"sub": "ada", "exp": now + 2, "scope": "subscribe:** publish:**"});
    let key = EncodingKey::from_secret(b"0123456789abcdef0123456789abcdef");
    let token = encode(&Header::default(), &claims, &key).expect("a token");
    let open = || {
        let request = request("GET", "/subscribe/t").header("authorization", format!("Bearer {token}"));
        request.body(Body::empty()).expect("a request")
    };
    let mut tail = Source::new(rig.start(open()).await);
    rig.fill("t", 0..1).await;
    assert_eq!(tail.seq().await, 1);
    assert_eq!(tail.next().await, None);
    rig.send(open()).await.error(401, "bad_token");
}

#[tokio::test]
async fn invalid_positions_are_refused_before_the_stream_begins() {
    let rig = Rig::open();
    rig.fill("t", 0..1).await;
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    let refused = async |request: Request| -> Answer { rig.send(request).await };
    refused(resumed(id)).await.error(404, "unknown_id");
    refused(get(&format!("/subscribe/none?lastEventId={id}"))).await.error(404, "unknown_id");
    refused(resumed("7")).await.error(400, "bad_request");
    refused(get("/subscribe/t?from=x")).await.error(400, "bad_request");
    refused(get("/subscribe/t?from=ts")).await.error(400, "bad_request");
    refused(get("/subscribe/t.*x")).await.error(400, "bad_topic");
    refused(resumed("p1.1.2")).await.error(400, "bad_request");
    // A position after every event.
    refused(get("/subscribe/t.*?lastEventId=p1.7fffffffffffff.1.1")).await.error(404, "unknown_id");
    // An empty header counts as absent.
    let mut source = Source::new(rig.start(resumed("")).await);
    assert_eq!(source.seq().await, 1);
}
