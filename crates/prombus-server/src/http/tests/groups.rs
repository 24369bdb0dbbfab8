//! Tests of topics and groups, and of the admin routes for them.

use super::{Rig, request};
use axum::body::Body;
use serde_json::{Value, json};

async fn put(rig: &Rig, path: &str, body: &str) -> super::Answer {
    rig.send(request("PUT", path).body(Body::from(body.to_owned())).expect("a request")).await
}

async fn delete(rig: &Rig, path: &str) -> super::Answer {
    rig.send(request("DELETE", path).body(Body::empty()).expect("a request")).await
}

#[tokio::test]
async fn topics_are_listed_with_their_counts() {
    let rig = Rig::open();
    rig.fill("b", 0..3).await;
    rig.fill("a", 0..1).await;
    put(&rig, "/groups/b/g", "{}").await.ok();
    let topics = rig.get("/topics").await.ok();
    let bytes = topics["topics"][1]["bytes"].clone();
    assert!(bytes.as_u64() > Some(0), "{topics}");
    let b = json!({"topic": "b", "first_seq": 1, "last_seq": 3, "count": 3, "bytes": bytes, "groups": 1});
    assert_eq!((&topics["topics"][0]["topic"], &topics["topics"][1]), (&json!("a"), &b));
    assert!(topics["bytes"].is_u64());
    let mut one = rig.get("/topics/b").await.ok();
    let settings = one.as_object_mut().expect("an object").remove("settings").expect("the settings");
    assert_eq!(one.as_object_mut().expect("an object").remove("set"), Some(json!({})));
    assert_eq!((one, &settings["compaction"]), (b, &json!(false)));
    rig.get("/topics/c").await.error(404, "not_found");
    rig.get("/topics/a..b").await.error(400, "bad_topic");
}

#[tokio::test]
async fn a_group_is_created_without_members_and_deleted() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    assert_eq!(put(&rig, "/groups/t/g", r#"{"from":"earliest"}"#).await.ok(), json!({"created": true}));
    assert_eq!(put(&rig, "/groups/t/g", "").await.ok(), json!({"created": false}));
    put(&rig, "/groups/t/g", r#"{"filter":{"key":"k"}}"#).await.error(409, "group_conflict");
    let group = &rig.get("/groups?topic=t").await.ok()["groups"][0];
    let figures = (&group["lag"], &group["members"], &group["in_flight"], &group["waiting"]);
    assert_eq!(figures, (&json!(3), &json!(0), &json!(0), &json!(0)));
    assert_eq!((&group["oldest_unacked"]["seq"], &group["oldest_unacked"]["ts"]), (&json!(1), &json!(0)));
    assert_eq!(rig.get("/groups?topic=u").await.ok(), json!({"groups": []}));
    rig.get("/groups?topic=a..b").await.error(400, "bad_topic");

    for (body, code) in [("{", "bad_json"), ("[]", "bad_request"), (r#"{"from":"x"}"#, "bad_request")] {
        put(&rig, "/groups/t/h", body).await.error(400, code);
    }
    put(&rig, "/groups/t/h", &"[".repeat(60_000)).await.error(400, "bad_request");
    put(&rig, "/groups/t/h", &" ".repeat(70_000)).await.error(413, "too_large");
    put(&rig, "/groups/t/a%20b", "").await.error(400, "bad_request");

    assert_eq!(delete(&rig, "/groups/t/g").await.ok(), json!({"deleted": true}));
    delete(&rig, "/groups/t/g").await.error(404, "not_found");
    rig.get("/groups/t/g").await.error(404, "not_found");
}

#[tokio::test]
async fn a_group_of_a_pattern_is_named_as_written() {
    let rig = Rig::open();
    rig.fill("orders.eu", 0..2).await;
    put(&rig, "/groups/orders.*/g", r#"{"from":"earliest","topics":["more"]}"#).await.ok();
    for path in ["/groups/orders.*/g", "/groups/orders.%2A/g"] {
        let group = rig.get(path).await.ok();
        assert_eq!((&group["topic"], &group["lag"]), (&json!("orders.*"), &json!(2)));
    }
}

#[tokio::test]
async fn a_lease_shows_its_event_holder_and_deadline() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    let mut member = rig.bus.subscribe("t", "g").from_earliest().await.expect("joined");
    let first = member.next().await.expect("open").expect("a delivery");
    let group = rig.get("/groups/t/g").await.ok();
    let lease = &group["leases"][0];
    assert_eq!((&lease["topic"], &lease["seq"], &lease["attempt"]), (&json!("t"), &json!(1), &json!(1)));
    assert_eq!(lease["holder"]["member"], group["member_list"][0]["member"]);
    assert_eq!(lease["holder"]["label"], group["member_list"][0]["label"]);
    let ends_in_ms = lease["ends_in_ms"].as_i64().expect("a number");
    let deadline_ms = lease["deadline_ms"].as_i64().expect("a number");
    assert!((deadline_ms - ends_in_ms - crate::clock::now_ms()).abs() < 5_000);
    assert!(lease["age_ms"].as_u64().expect("a number") < 5_000);
    assert_eq!((&group["topics"][0]["floor"], &group["topics"][0]["lag"]), (&json!(0), &json!(3)));
    assert_eq!((&group["members"], &group["cursor"]["topic"]), (&json!(1), &json!("t")));

    // Settled on behalf of the member.
    let id = lease["id"].as_str().expect("an id");
    let settle = async |body: Value| rig.post("/groups/t/g/settle", body.to_string()).await;
    assert_eq!(settle(json!({"id": id, "verdict": "ack"})).await.ok(), json!({"stale": false}));
    assert_eq!(settle(json!({"id": id, "verdict": "ack"})).await.ok(), json!({"stale": true}));
    let second = member.next().await.expect("open").expect("a delivery");
    let id_of_second = rig.get("/groups/t/g").await.ok()["oldest_unacked"]["id"].clone();
    let nack = json!({"id": id_of_second, "verdict": "nack", "reason": "no", "delay_ms": 60_000});
    assert_eq!(settle(nack).await.ok(), json!({"stale": false}));
    let group = rig.get("/groups/t/g").await.ok();
    assert_eq!((&group["counters"]["acked"], &group["counters"]["nacked"]), (&json!(1), &json!(1)));
    assert_eq!(group["waiting"], 1);
    for body in [
        json!({"id": id}),
        json!({"verdict": "ack"}),
        json!({"id": "x", "verdict": "ack"}),
        json!({"id": id, "verdict": "drop"}),
        json!({"id": id, "verdict": "nack", "delay_ms": -1}),
        json!([]),
    ] {
        settle(body).await.error(400, "bad_request");
    }
    rig.post("/groups/t/none/settle", json!({"id": id, "verdict": "ack"}).to_string())
        .await
        .error(404, "not_found");
    drop((first, second));
}

#[tokio::test]
async fn seek_accepts_the_forms_of_the_wire() {
    let rig = Rig::open();
    rig.fill("t", 0..5).await;
    put(&rig, "/groups/t/g", "").await.ok();
    let third = rig.get("/replay?topic=t").await.ok()["events"][2]["id"].clone();
    let seek = async |to: Value| rig.post("/groups/t/g/seek", json!({"to": to}).to_string()).await;
    for (to, lag) in [
        (json!("earliest"), 5),
        (json!("latest"), 0),
        (json!({"from": "ts", "ts": 3}), 2),
        (json!({"ts": 1}), 4),
        (json!({"from": "afterId", "afterId": third}), 2),
        (json!({"afterId": third}), 2),
        (json!({"from": "earliest"}), 5),
    ] {
        let cursor = seek(to.clone()).await.ok();
        assert_eq!(cursor["cursor"]["topic"], "t");
        assert_eq!(rig.get("/groups/t/g").await.ok()["lag"], json!(lag), "{to}");
    }
    seek(json!({"afterId": "0196f1d0-1c2a-7b3c-8d4e-5f6071829304"})).await.error(404, "unknown_id");
    for to in [json!(null), json!("x"), json!({}), json!({"from": "ts"}), json!({"ts": -1})] {
        let message = seek(to.clone()).await.error(400, "bad_request");
        assert!(["\"to\"", "\"ts\"", "to"].iter().any(|name| message.contains(name)), "{to}: {message}");
    }
    rig.post("/groups/t/g/seek", "").await.error(400, "bad_json");
    rig.post("/groups/t/none/seek", r#"{"to":"latest"}"#).await.error(404, "not_found");
}

#[tokio::test]
async fn a_group_accepts_the_option_names_of_a_frame() {
    let rig = Rig::open();
    for (at, body) in [
        json!({"topic": "orders", "group": "billing"}),
        json!({"payload": null, "partition": 1, "ttlMs": 5, "manualAck": true}),
        json!({"ttl_ms": 5}),
    ]
    .iter()
    .enumerate()
    {
        let answer = put(&rig, &format!("/groups/orders/g{at}"), &body.to_string()).await.ok();
        assert_eq!(answer, json!({"created": true}), "{body}");
    }
    let message = put(&rig, "/groups/orders/g", r#"{"topcs": []}"#).await.error(400, "bad_request");
    assert!(message.contains("did you mean \"topics\"?"), "{message}");
}

#[tokio::test]
async fn admin_routes_accept_both_spellings_and_list_ignored_names() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    let id = rig.get("/replay?topic=t").await.ok()["events"][0]["id"].clone();
    for (at, body) in [
        json!({"from": "afterId", "after_id": id, "max_in_flight": 5, "colour": 1}),
        json!({"from": {"after_id": id}, "colour": 1}),
    ]
    .iter()
    .enumerate()
    {
        let answer = put(&rig, &format!("/groups/t/g{at}?x=1"), &body.to_string()).await.ok();
        assert_eq!(answer, json!({"created": true, "ignored": ["colour", "x"]}));
        assert_eq!(rig.get(&format!("/groups/t/g{at}")).await.ok()["lag"], 2);
    }
    let post = async |path: &str, body: Value| rig.post(path, body.to_string()).await;
    let sought = post("/groups/t/g0/seek", json!({"to": {"after_id": id}, "why": 1})).await.ok();
    assert_eq!((&sought["cursor"]["lastId"], &sought["ignored"]), (&id, &json!(["why"])));
    let settle = json!({"verdict": "nack", "id": id, "delayMs": 5, "topic": "t"});
    let settled = post("/groups/t/g0/settle", settle).await.ok();
    assert_eq!(settled, json!({"stale": true, "ignored": ["topic"]}));
    let escaped =
        r#"{"\u0076erdict": "\u0061ck", "id": "0196f1d0-1c2a-7b3c-8d4e-5f6071829304", "\u0061bc": 1}"#;
    let settled = rig.post("/groups/t/g0/settle", escaped).await.ok();
    assert_eq!(settled, json!({"stale": true, "ignored": ["abc"]}));
    let set = put(&rig, "/topics/t", r#"{"retentionMs": 60000, "retention_ms": 60000.0, "colour": 1}"#).await;
    assert_eq!(set.status, 400);
    let set = put(&rig, "/topics/t", r#"{"retentionMs": 60000.0, "colour": 1}"#).await.ok();
    assert_eq!((&set["set"], &set["ignored"]), (&json!({"retention_ms": 60000}), &json!(["colour"])));
    assert_eq!(post("/repair", json!({"acceptLoss": false, "x": 1})).await.ok()["ignored"], json!(["x"]));
    let request = request("DELETE", "/groups/t/g1?colour=1").body(Body::empty()).expect("a request");
    assert_eq!(rig.send(request).await.ok(), json!({"deleted": true, "ignored": ["colour"]}));
    // Responses with data do not list ignored names.
    assert!(rig.get("/topics?colour=1").await.ok().get("ignored").is_none());

    for (path, body, expected) in [
        ("/groups/t/g0/seek", r#"{"to": {"afterid": 1}}"#, "\"afterid\": did you mean \"afterId\"?"),
        (
            "/groups/t/g0/settle",
            r#"{"verdict": "nack", "delay": 1, "delayms": 1}"#,
            "\"delayms\": did you mean \"delay_ms\"?",
        ),
        ("/groups/t/g0/settle", r#"{"delayMs": 1, "delay_ms": 2}"#, "the same name with different values"),
        ("/repair", r#"{"accept-loss": true}"#, "\"accept-loss\": did you mean \"accept_loss\"?"),
        ("/repair", r#"{"accept_loss": true, "acceptLoss": false}"#, "the same name with different values"),
        ("/backup", r#"{"foldr": "/x"}"#, "\"foldr\": did you mean \"folder\"?"),
    ] {
        let message = rig.post(path, body).await.error(400, "bad_request");
        assert!(message.contains(expected), "{path} {body}: {message}");
    }
}
