//! Tests of publishing.

use super::{Rig, request};
use crate::options::{Rate, ServerOptions};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use std::time::Duration;

const NDJSON: &str = "application/x-ndjson";

async fn lines(rig: &Rig, path: &str, body: impl Into<Body>) -> super::Answer {
    rig.send(request("POST", path).header("content-type", NDJSON).body(body.into()).expect("a request")).await
}

async fn events(rig: &Rig, topic: &str) -> Vec<Value> {
    rig.get(&format!("/export?topic={topic}")).await.lines()
}

/// A body without a known length.
fn streamed(pieces: Vec<&'static [u8]>) -> Body {
    Body::from_stream(stream::iter(
        pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))),
    ))
}

#[tokio::test]
async fn one_event_gets_id_and_seq_whatever_its_content_type() {
    let rig = Rig::open();
    let types = ["application/json", "application/x-www-form-urlencoded", "text/plain", "x"];
    for (at, content_type) in types.iter().enumerate() {
        let request = request("POST", "/publish/orders?key=k%201&tag=a&tag=b&ts=7");
        let request = request.header("content-type", *content_type).body("{\"a\":\n1}".into());
        let answer = rig.send(request.expect("a request")).await.ok();
        assert_eq!(answer["seq"], json!(at + 1));
    }
    assert_eq!(rig.post("/publish/orders", "5").await.ok()["seq"], 5);
    let events = events(&rig, "orders").await;
    let expected = json!({"a": 1});
    assert_eq!((events.len(), &events[0]["payload"]), (5, &expected));
    assert_eq!((&events[0]["key"], &events[0]["ts"]), (&json!("k 1"), &json!(7)));
    assert_eq!(events[0]["tags"], json!(["a", "b"]));
}

#[tokio::test]
async fn several_events_are_lines_and_empty_lines_are_skipped() {
    let rig = Rig::open();
    let answer = lines(&rig, "/publish/t", streamed(vec![b"1\n\n{\"a\"", b":2}\r\n", b"\"x\""])).await.ok();
    assert_eq!((&answer["count"], &answer["events"][2]["seq"]), (&json!(3), &json!(3)));
    let payloads: Vec<Value> = events(&rig, "t").await.iter().map(|event| event["payload"].clone()).collect();
    assert_eq!(payloads, [json!(1), json!({"a": 2}), json!("x")]);
    lines(&rig, "/publish/t", "\n \n").await.error(400, "bad_request");
    lines(&rig, "/publish/t", "").await.error(400, "bad_request");
}

#[tokio::test]
async fn an_invalid_line_is_named_and_nothing_is_published() {
    let rig = Rig::open();
    let message = lines(&rig, "/publish/t", "1\n\n2\n{\"a\":\n3\n").await.error(400, "bad_json");
    assert!(message.starts_with("line 4: "), "{message}");
    let deep = format!("1\n{}\n", "[".repeat(100_000));
    let message = lines(&rig, "/publish/t", deep).await.error(400, "bad_request");
    assert!(message.starts_with("line 2: "), "{message}");
    let message = lines(&rig, "/publish/t", b"\xff\n1".to_vec()).await.error(400, "bad_json");
    assert!(message.starts_with("line 1: "), "{message}");
    assert_eq!(events(&rig, "t").await.len(), 0);
    assert_eq!(rig.get("/topics").await.ok()["topics"], json!([]));
}

#[tokio::test]
async fn an_envelope_is_a_whole_record() {
    let rig = Rig::open();
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    let record = format!(
        r#"{{"id":"{id}","seq":99,"ts":5,"topic":"t","key":"k","headers":{{"h":"v"}},"tags":["x"],"caused_by":["{id}"],"sid":"{id}","payload":null}}"#
    );
    let body = format!("{record}\n{{\"payload\":[1]}}\n");
    let answer = lines(&rig, "/publish/t?envelope=1&key=other", body).await.ok();
    assert_eq!((&answer["events"][0]["id"], &answer["events"][0]["seq"]), (&json!(id), &json!(1)));
    let mut expected: Value = serde_json::from_str(&record).expect("JSON");
    expected["seq"] = json!(1);
    let kept = events(&rig, "t").await;
    assert_eq!((&kept[0], &kept[1]["key"]), (&expected, &json!("other")));

    // An export can be published again; all its events are duplicates.
    let export = rig.get("/export?topic=t").await.body;
    let again = lines(&rig, "/publish/t?envelope=1", export).await.ok();
    assert!(again["events"].as_array().expect("a list").iter().all(|event| event["duplicate"] == true));
    assert_eq!(rig.post("/publish/t?envelope=1", record).await.ok()["duplicate"], true);

    for (body, code) in [
        (r#"{"payload":1,"topic":"u"}"#, "bad_request"),
        (r#"{"topic":"t"}"#, "bad_request"),
        (r#"{"payload":1,"ts":"x"}"#, "bad_request"),
        (r#"{"payload":1,"id":7}"#, "bad_request"),
        ("[1]", "bad_request"),
        (r#"{"payload":"#, "bad_json"),
        ("", "bad_json"),
    ] {
        rig.post("/publish/t?envelope=1", body).await.error(400, code);
    }
    let deep = format!("{{\"payload\":{}}}", "[".repeat(100_000));
    rig.post("/publish/t?envelope=1", deep).await.error(400, "bad_json");
    let deep = format!("{{\"payload\":{}{}}}", "[".repeat(200), "]".repeat(200));
    rig.post("/publish/t?envelope=1", deep).await.error(400, "bad_request");
    let deep = format!("{{\"payload\":{}{}}}", "[".repeat(128), "]".repeat(128));
    rig.post("/publish/t?envelope=1", deep).await.ok();
}

#[tokio::test]
async fn a_retry_with_the_same_idempotency_key_is_a_duplicate() {
    let rig = Rig::open();
    let send = async |content_type: &'static str, key: &str, body: &'static str| {
        let request = request("POST", "/publish/t").header("content-type", content_type);
        let request = request.header("idempotency-key", key).body(body.into()).expect("a request");
        rig.send(request).await.ok()
    };
    let first = send("text/plain", "order 17", "1").await;
    let again = send("text/plain", "order 17", "1").await;
    assert_eq!((&first["id"], first.get("duplicate")), (&again["id"], None));
    assert_eq!(again["duplicate"], true);
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    assert_eq!(send("text/plain", id, "1").await["id"], id);

    let first = send(NDJSON, "batch", "1\n2\n").await;
    let again = send(NDJSON, "batch", "1\n2\n").await;
    assert_ne!(first["events"][0]["id"], first["events"][1]["id"]);
    assert_eq!(first["events"][0]["id"], again["events"][0]["id"]);
    assert!(again["events"].as_array().expect("a list").iter().all(|event| event["duplicate"] == true));
    assert_eq!(events(&rig, "t").await.len(), 4);

    let both = request("POST", "/publish/t?id=0196f1d0-1c2a-7b3c-8d4e-5f6071829304");
    let both = both.header("idempotency-key", "k").body("1".into()).expect("a request");
    rig.send(both).await.error(400, "bad_request");
    lines(&rig, "/publish/t?id=0196f1d0-1c2a-7b3c-8d4e-5f6071829304", "1\n2").await.error(400, "bad_request");
}

#[tokio::test]
async fn x_headers_become_headers_of_the_event_except_credentials() {
    let rig = Rig::with_tokens(&[("publisher", &["publish:**", "subscribe:**"])]);
    let request = request("POST", "/publish/t")
        .header("authorization", "Bearer publisher")
        .header("cookie", "session=1")
        .header("x-trace", "7")
        .header("x-api-key", "secret")
        .header("x-forwarded-for", "10.0.0.1")
        .header("x-auth-token", "secret");
    rig.send(request.body("1".into()).expect("a request")).await.ok();
    let export = super::request("GET", "/export?topic=t").header("authorization", "Bearer publisher");
    let events = rig.send(export.body(Body::empty()).expect("a request")).await.lines();
    assert_eq!(events[0]["headers"], json!({"x-trace": "7"}));
}

#[tokio::test]
async fn bodies_over_the_limit_are_413() {
    let mut options = ServerOptions { max_payload_bytes: 100, ..ServerOptions::default() };
    options.connections.max_body_bytes = 1_000;
    let rig = Rig::with(options);
    let long = format!("\"{}\"", "a".repeat(99));
    rig.post("/publish/t", long.clone()).await.error(413, "too_large");
    rig.post("/publish/t", format!("\"{}\"", "a".repeat(98))).await.ok();
    rig.post("/publish/t", streamed(vec![b"\"aaaaaaaaaa"; 50])).await.error(413, "too_large");
    let message = lines(&rig, "/publish/t", format!("1\n{long}\n")).await.error(413, "too_large");
    assert!(message.starts_with("line 2: "), "{message}");
    lines(&rig, "/publish/t", "1\n".repeat(501)).await.error(413, "too_large");
    // The content-length is enough: the server does not wait for the body, which never comes.
    let request = request("POST", "/publish/t").header("content-length", "1000000");
    let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    rig.send(request.body(never).expect("a request")).await.error(413, "too_large");
    assert_eq!(events(&rig, "t").await.len(), 1);
}

#[tokio::test]
async fn a_stalled_body_is_408() {
    let mut options = ServerOptions::default();
    options.connections.head_timeout = Duration::from_millis(20);
    let rig = Rig::with(options);
    let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    rig.post("/publish/t", never).await.error(408, "bad_request");
}

#[tokio::test]
async fn an_exceeded_rate_is_429_with_the_time_to_wait() {
    let mut options = ServerOptions::default();
    options.rates.connection_publish = Some(Rate { per_second: 0.5, burst: 3.0 });
    let rig = Rig::with(options);
    lines(&rig, "/publish/t", "1\n2\n3").await.ok();
    let answer = rig.post("/publish/t", "4").await;
    answer.error(429, "rate_limited");
    let retry_after_ms = answer.json()["retry_after_ms"].as_u64().expect("a number");
    assert!((1_000..=2_000).contains(&retry_after_ms), "{retry_after_ms}");
    assert_eq!(answer.headers["retry-after"], "2");
    assert_eq!(events(&rig, "t").await.len(), 3);
}

#[tokio::test]
async fn a_server_that_shuts_down_accepts_no_publishes() {
    let rig = Rig::open();
    rig.stop.send_replace(Some(crate::shutdown::StopReason::Shutdown));
    let answer = rig.post("/publish/t", "1").await;
    answer.error(503, "unavailable");
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn bad_values_are_named() {
    let rig = Rig::open();
    rig.post("/publish/t", "").await.error(400, "bad_json");
    rig.post("/publish/t", "{").await.error(400, "bad_json");
    rig.post("/publish/t", "[".repeat(100_000)).await.error(400, "bad_request");
    rig.post("/publish/a..b", "1").await.error(400, "bad_topic");
    rig.post("/publish/a.*", "1").await.error(400, "bad_topic");
    rig.post("/publish/a%2Fb", "1").await.error(400, "bad_topic");
    rig.post("/publish/%ff", "1").await.error(400, "bad_topic");
    for (query, name) in [
        ("key=", "key"),
        ("key=a&key=b", "key"),
        ("ts=now", "ts"),
        ("ts=-1", "ts"),
        ("id=1", "id"),
        ("sid=1", "sid"),
        ("caused_by=1", "caused_by"),
        ("tag=", "tags"),
        ("envelope=yes", "envelope"),
        ("key=%zz", "key"),
    ] {
        let message = rig.post(&format!("/publish/t?{query}"), "1").await.error(400, "bad_request");
        assert!(message.contains(&format!("\"{name}\"")), "{query}: {message}");
    }
    assert_eq!(rig.get("/topics").await.ok()["topics"], json!([]));
}

#[tokio::test]
async fn large_requests_wait_for_room_and_release_it() {
    let mut options = ServerOptions::default();
    options.connections.max_buffered_bytes = 0;
    options.connections.head_timeout = Duration::from_millis(30);
    let rig = Rig::with(options);
    let large = || {
        let line = Bytes::from(format!("\"{}\"\n", "a".repeat(50_000)));
        Body::from_stream(stream::iter(vec![line; 10].into_iter().map(Ok::<_, std::io::Error>)))
    };
    lines(&rig, "/publish/t", large()).await.error(503, "unavailable");
    assert_eq!(rig.gateway.budget.used_bytes(), 0);
    // Small requests always have room.
    lines(&rig, "/publish/t", "1\n2").await.ok();
}

#[tokio::test]
async fn names_are_accepted_in_both_spellings_and_unknown_ones_are_listed() {
    let rig = Rig::open();
    let id = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";
    for path in [format!("/publish/t?caused_by={id}"), format!("/publish/t?causedBy={id}")] {
        let answer = rig.post(&path, "1").await.ok();
        assert!(answer.get("ignored").is_none(), "{answer}");
    }
    for record in [
        format!("{{\"payload\":1,\"caused_by\":[\"{id}\"]}}"),
        format!("{{\"payload\":1,\"causedBy\":[\"{id}\"]}}"),
        format!("{{\"payload\":1,\"caused\\u0042y\":[\"{id}\"],\"caused_by\":[ \"{id}\" ]}}"),
    ] {
        let answer = rig.post("/publish/t?envelope=1", record).await.ok();
        assert!(answer.get("ignored").is_none(), "{answer}");
    }
    let events = events(&rig, "t").await;
    assert_eq!(events.len(), 5);
    assert!(events.iter().all(|event| event["caused_by"][0] == id), "{events:?}");

    let answer = rig.post("/publish/t?colour=red&keys=1", "1").await.ok();
    assert_eq!(answer["ignored"], serde_json::json!(["colour", "keys"]));
    let record = "{\"payload\":{\"colour\":1},\"seq\":1,\"partition\":0,\"\\u0061bc\":1,\"xyz\":2}\n";
    let answer = lines(&rig, "/publish/t?envelope=1&shape=2", record.repeat(3)).await.ok();
    assert_eq!(
        (&answer["count"], &answer["ignored"]),
        (&3.into(), &serde_json::json!(["abc", "shape", "xyz"]))
    );

    for (path, body, expected) in [
        ("/publish/t?causedby=1", "1", "unknown parameter \"causedby\": did you mean \"caused_by\"?"),
        ("/publish/t?envelop=1", "1", "unknown parameter \"envelop\": did you mean \"envelope\"?"),
        ("/publish/t?envelope=1", r#"{"paylod":1}"#, "unknown field \"paylod\": did you mean \"payload\"?"),
        (
            "/publish/t?envelope=1",
            r#"{"payload":1,"Key":"k"}"#,
            "unknown field \"Key\": did you mean \"key\"?",
        ),
        (
            "/publish/t?envelope=1",
            r#"{"payload":1,"causedBy":[],"caused_by":["0196f1d0-1c2a-7b3c-8d4e-5f6071829304"]}"#,
            "\"caused_by\" is given twice with different values",
        ),
    ] {
        let message = rig.post(path, body).await.error(400, "bad_request");
        assert!(message.contains(expected), "{path}: {message}");
    }
}
