//! Tests of the state by key, settings and deletion of topics, and backup.

use super::{Answer, Rig, get, request};
use axum::body::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Rig {
    async fn set(&self, topic: &str, key: &str, value: i64) {
        self.bus.publish(topic, &value).key(key).ts(value).await.expect("published");
    }

    async fn with_tag(&self, path: &str, tag: &str) -> Answer {
        let request = request("GET", path).header("if-none-match", tag);
        self.send(request.body(Body::empty()).expect("a request")).await
    }

    async fn put(&self, path: &str, body: &str) -> Answer {
        self.send(request("PUT", path).body(Body::from(body.to_owned())).expect("a request")).await
    }
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers[name].to_str().expect("text")
}

#[tokio::test]
async fn the_state_of_a_key_is_its_newest_event_with_tag_and_position() {
    let rig = Rig::open();
    rig.set("kv", "a/b c", 1).await;
    rig.set("kv", "a/b c", 2).await;
    rig.set("kv", "other", 3).await;
    let answer = rig.get("/state/kv/a%2Fb%20c").await;
    let record = answer.ok();
    assert_eq!((&record["seq"], &record["payload"], &record["key"]), (&json!(2), &json!(2), &json!("a/b c")));
    assert_eq!(header(&answer, "etag"), format!("\"{}\"", record["id"].as_str().expect("an id")));
    assert_eq!((header(&answer, "x-position-seq"), header(&answer, "cache-control")), ("3", "no-cache"));
    let tag = header(&answer, "etag").to_owned();
    let same = rig.with_tag("/state/kv/a%2Fb%20c", &tag).await;
    assert_eq!((same.status.as_u16(), same.body.len(), header(&same, "etag")), (304, 0, tag.as_str()));
    rig.set("kv", "a/b c", 4).await;
    assert_eq!(rig.with_tag("/state/kv/a%2Fb%20c", &tag).await.ok()["seq"], 4);
    rig.get("/state/kv/unknown").await.error(404, "not_found");
    rig.get("/state/none/a").await.error(404, "not_found");
    rig.bus.publish_json("kv", "null").key("other").await.expect("published");
    rig.get("/state/kv/other").await.error(404, "not_found");
}

#[tokio::test]
async fn all_pages_of_a_state_have_the_position_of_the_first() {
    let rig = Rig::open();
    for number in 0..25 {
        rig.set("kv", &format!("k{number}"), number).await;
    }
    let (mut path, mut keys, mut positions) = ("/state/kv?limit=10".to_owned(), BTreeMap::new(), Vec::new());
    loop {
        let page = rig.get(&path).await.ok();
        let events = page["events"].as_array().expect("a list");
        assert_eq!((&page["topic"], &page["count"]), (&json!("kv"), &json!(events.len())));
        for event in events {
            keys.insert(event["key"].as_str().expect("a key").to_owned(), event["seq"].clone());
        }
        positions.push(page["position"].clone());
        // A key that is not listed yet changes, so its newest event is after the position.
        rig.set("kv", "k20", 100).await;
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/state/kv?limit=10&next={next}");
    }
    assert_eq!(positions.len(), 3);
    assert!(
        positions.iter().all(|position| position["seq"] == 25 && *position == positions[0]),
        "{positions:?}"
    );
    assert_eq!(keys.len(), 24);
    assert!(!keys.contains_key("k20"));
    let empty = rig.get("/state/none").await.ok();
    assert_eq!(empty, json!({"topic": "none", "position": null, "events": [], "count": 0, "next": null}));
    rig.get("/state/kv?next=nonsense").await.error(400, "bad_request");
    rig.get("/state/kv?limit=0").await.error(400, "bad_request");
}

#[tokio::test]
async fn a_state_comes_as_lines_on_request_and_as_304_if_unchanged() {
    let rig = Rig::open();
    for number in 0..3_000 {
        rig.set("kv", &format!("k{}", number % 1_500), number).await;
    }
    for answer in [rig.get("/state/kv?ndjson=1").await, {
        let lines = request("GET", "/state/kv").header("accept", "application/x-ndjson");
        rig.send(lines.body(Body::empty()).expect("a request")).await
    }] {
        assert_eq!(header(&answer, "content-type"), "application/x-ndjson");
        assert_eq!(header(&answer, "x-position-seq"), "3000");
        let seqs: Vec<Value> = answer.lines().iter().map(|line| line["seq"].clone()).collect();
        assert_eq!(seqs, (1_501..=3_000).map(Value::from).collect::<Vec<_>>());
        let same = rig.with_tag("/state/kv?ndjson=1", header(&answer, "etag")).await;
        assert_eq!(same.status, 304);
    }
}

#[tokio::test]
async fn an_entity_tag_identifies_one_response() {
    let rig = Rig::open();
    let kv = prombus::Topic::new("kv").expect("a good name");
    rig.set("kv", "a", 1).await;
    let as_page = rig.get("/state/kv?limit=10").await;
    let tag = header(&as_page, "etag").to_owned();
    assert_eq!(rig.with_tag("/state/kv?limit=10", &tag).await.status, 304);
    assert_eq!(header(&as_page, "vary"), "accept");
    // The same keys as lines.
    let lines = request("GET", "/state/kv?limit=10").header("accept", "application/x-ndjson");
    let lines = lines.header("if-none-match", &tag).body(Body::empty()).expect("a request");
    assert_eq!(rig.send(lines).await.status, 200);
    // Another topic of the same name, at the same seq.
    rig.bus.delete_topic(&kv).await.expect("deleted");
    rig.set("kv", "a", 2).await;
    assert_eq!(rig.with_tag("/state/kv?limit=10", &tag).await.ok()["events"][0]["payload"], 2);
}

#[tokio::test]
async fn the_entity_tag_changes_when_retention_removes_a_key() {
    let rig = Rig::open();
    rig.set("kv", "old", 1).await;
    rig.set("kv", "new", 2).await;
    let known = rig.get("/state/kv").await;
    assert_eq!(known.ok()["count"], 2);
    let options = prombus::TopicOptions { retention_bytes: Some(1), ..Default::default() };
    rig.bus.set_topic(&prombus::Topic::new("kv").expect("a good name"), options).await.expect("set");
    let tag = header(&known, "etag").to_owned();
    let soon = async {
        while rig.get("/state/kv").await.ok()["count"] != 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), soon).await.expect("retention works");
    assert_eq!(rig.with_tag("/state/kv", &tag).await.ok()["events"][0]["key"], "new");
}

#[tokio::test]
async fn the_state_as_of_a_time_is_returned() {
    let rig = Rig::open();
    for (key, value) in [("a", 10), ("b", 20), ("a", 30)] {
        rig.set("kv", key, value).await;
    }
    let at = async |ts: u64| {
        let page = rig.get(&format!("/state/kv?at={ts}")).await.ok();
        page["events"].as_array().expect("a list").iter().map(|it| it["payload"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(at(5).await, Vec::<Value>::new());
    assert_eq!(at(20).await, [json!(10), json!(20)]);
    assert_eq!(at(30).await, [json!(20), json!(30)]);
    assert_eq!(rig.get("/state/kv/a?at=29").await.ok()["payload"], 10);
    rig.get("/state/kv/b?at=19").await.error(404, "not_found");
    rig.get("/state/kv?at=soon").await.error(400, "bad_request");
}

#[tokio::test]
async fn only_admins_set_and_delete_topics() {
    let rig = Rig::with_tokens(&[("boss", &["admin"]), ("reader", &["subscribe:**"])]);
    rig.fill("orders", 0..3).await;
    let call = async |method: &str, token: &str, body: &str| {
        let request = request(method, "/topics/orders").header("authorization", format!("Bearer {token}"));
        rig.send(request.body(Body::from(body.to_owned())).expect("a request")).await
    };
    call("PUT", "reader", "{}").await.error(403, "forbidden");
    call("DELETE", "reader", "").await.error(403, "forbidden");
    let set = call("PUT", "boss", r#"{"retention_days": 3, "compaction": true}"#).await.ok();
    assert_eq!((&set["settings"]["retention_ms"], &set["count"]), (&json!(259_200_000), &json!(3)));
    assert_eq!(set["set"], json!({"retention_days": 3.0, "compaction": true}));
    let shown = call("GET", "reader", "").await.ok();
    assert_eq!(shown["settings"]["snapshot_topic"], "orders.snapshot");
    assert!(shown["bytes"].as_u64() > Some(0));
    for bad in [r#"{"retention_ms": 0}"#, r#"{"retension_ms": 1}"#, "[]", "{", r#"{"compaction": 1}"#] {
        assert_eq!(call("PUT", "boss", bad).await.status, 400, "{bad}");
    }
    assert_eq!(call("DELETE", "boss", "").await.ok(), json!({"deleted": true}));
    call("DELETE", "boss", "").await.error(404, "not_found");
    call("GET", "boss", "").await.error(404, "not_found");

    // A topic can be set before its first event.
    let made = call("PUT", "boss", r#"{"max_attempts": 2}"#).await;
    assert_eq!((made.status.as_u16(), header(&made, "location")), (201, "/topics/orders"));
    assert_eq!((&made.json()["set"], &made.json()["count"]), (&json!({"max_attempts": 2}), &json!(0)));
    let again = call("PUT", "boss", "{}").await;
    assert!(again.ok()["set"] == json!({}) && !again.headers.contains_key("location"));
    assert_eq!(call("GET", "boss", "").await.ok()["last_seq"], 0);
}

#[tokio::test]
async fn keys_that_clients_remove_from_paths_can_be_read_by_query() {
    let rig = Rig::open();
    for key in [".", "..", "a/../b", "%2e", "?", "#"] {
        rig.set("kv", key, 1).await;
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = rig.get(&format!("/state/kv?key={encoded}")).await;
        let record = answer.ok();
        assert_eq!(record["key"], key);
        assert_eq!(header(&answer, "etag"), format!("\"{}\"", record["id"].as_str().expect("an id")));
        assert_eq!(
            rig.with_tag(&format!("/state/kv?key={encoded}"), header(&answer, "etag")).await.status,
            304
        );
        // A path also works, if the client sends it unchanged.
        assert_eq!(rig.get(&format!("/state/kv/{encoded}")).await.ok()["key"], key);
    }
    rig.get("/state/kv?key=none").await.error(404, "not_found");
    for group in [".", "..", "%2E", "%2e%2e"] {
        let message = rig.put(&format!("/groups/kv/{group}"), "{}").await.error(400, "bad_request");
        assert!(message.contains("cannot be named"), "{message}");
    }
    rig.put("/groups/kv/...", "{}").await.ok();
}

#[tokio::test]
async fn a_new_rate_applies_at_once() {
    let rig = Rig::open();
    rig.fill("t", 0..1).await;
    rig.put("/topics/t", r#"{"publish_rate": 0.001, "publish_burst": 1}"#).await.ok();
    rig.post("/publish/t", "1").await.ok();
    rig.post("/publish/t", "2").await.error(429, "rate_limited");
    rig.put("/topics/t", "{}").await.ok();
    rig.post("/publish/t", "3").await.ok();
}

#[tokio::test]
async fn a_backup_of_a_bus_in_memory_is_refused() {
    let rig = Rig::open();
    rig.post("/backup", r#"{"folder": "here"}"#).await.error(400, "bad_request");
    rig.post("/backup", "{}").await.error(400, "bad_request");
    let message = rig.post("/backup", r#"{"folder": "/nowhere/at/all"}"#).await.error(400, "bad_request");
    assert!(message.contains("nothing on disk"), "{message}");
    assert!(rig.send(get("/backup")).await.status == 405);
}

#[tokio::test]
async fn each_encoding_of_a_state_has_a_tag_of_its_own() {
    let rig = Rig::open();
    for number in 0..30 {
        rig.set("kv", &format!("k{number}"), number).await;
    }
    let ask = async |path: &str, encoding: &str, tag: &str| {
        let request = request("GET", path).header("accept-encoding", encoding).header("if-none-match", tag);
        rig.send(request.body(Body::empty()).expect("a request")).await
    };
    let mut tags = Vec::new();
    for encoding in ["identity", "gzip", "zstd"] {
        let answer = ask("/state/kv", encoding, "\"none\"").await;
        assert_eq!(answer.status, 200);
        let is_plain = encoding == "identity";
        assert_eq!(answer.headers.get("content-encoding").is_none(), is_plain, "{answer:?}");
        let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
        assert!(vary.iter().any(|name| *name == "accept-encoding"), "{vary:?}");
        tags.push(header(&answer, "etag").to_owned());
    }
    assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[0] != tags[2], "{tags:?}");
    assert_eq!(tags[1], tags[0].trim_end_matches('"').to_owned() + "-gzip\"");
    for tag in &tags {
        for encoding in ["identity", "gzip", "zstd"] {
            let answer = ask("/state/kv", encoding, tag).await;
            assert_eq!((answer.status.as_u16(), header(&answer, "etag")), (304, tag.as_str()));
            assert!(answer.headers.get_all("vary").iter().any(|name| name == "accept-encoding"));
        }
    }
    // The response for one key is never compressed, and its tag is the event's id.
    for encoding in ["identity", "gzip", "zstd", "gzip, identity;q=0", "br, identity;q=0"] {
        let of_path = ask("/state/kv/k1", encoding, "\"none\"").await;
        assert!(!of_path.headers.contains_key("content-encoding"));
        let tag = format!("\"{}\"", of_path.ok()["id"].as_str().expect("an id"));
        assert_eq!(header(&of_path, "etag"), tag);
        for (path, query, tag) in [
            ("/state/kv/k1", "/state/kv?key=k1", "\"none\""),
            ("/state/kv/k1", "/state/kv?key=k1", tag.as_str()),
            ("/state/kv/not-there-at-all", "/state/kv?key=not-there-at-all", "\"none\""),
        ] {
            let (of_path, of_query) = (ask(path, encoding, tag).await, ask(query, encoding, tag).await);
            assert_eq!(
                (of_query.status, &of_query.headers, &of_query.body),
                (of_path.status, &of_path.headers, &of_path.body),
                "{encoding}"
            );
        }
    }
    rig.set("kv", "k1", 31).await;
    assert_eq!(ask("/state/kv", "gzip", &tags[1]).await.status, 200);
}
