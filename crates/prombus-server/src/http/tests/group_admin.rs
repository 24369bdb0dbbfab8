//! Tests of the routes for operators of groups: pause, preview of a seek, verdicts; and of `GET /settings`.

use super::{Rig, request, token_options};
use crate::shown_settings::{SettingSource, ShownSetting, ShownSettings};
use axum::body::Body;
use prombus::{Delivery, Subscription};
use serde_json::{Value, json};
use std::time::Duration;

const UNKNOWN: &str = "0196f1d0-1c2a-7b3c-8d4e-5f6071829304";

async fn post(rig: &Rig, path: &str, body: Value) -> super::Answer {
    rig.post(path, body.to_string()).await
}

async fn next(member: &mut Subscription) -> Delivery {
    let next = tokio::time::timeout(Duration::from_secs(30), member.next()).await;
    next.expect("a delivery within 30 s").expect("open").expect("readable")
}

async fn nothing(member: &mut Subscription) {
    let next = tokio::time::timeout(Duration::from_millis(50), member.next()).await;
    assert!(next.is_err(), "nothing may be delivered");
}

#[tokio::test]
async fn a_paused_group_is_shown_as_paused_and_delivers_nothing_until_it_is_resumed() {
    let rig = Rig::open();
    let mut member = rig.bus.subscribe("t", "g").from_earliest().await.expect("joined");
    assert_eq!(rig.get("/groups/t/g").await.ok()["paused"], json!(false));
    for _ in 0..2 {
        assert_eq!(rig.post("/groups/t/g/pause", "").await.ok(), json!({"paused": true}));
    }
    assert_eq!(rig.get("/groups/t/g").await.ok()["paused"], json!(true));
    assert_eq!(rig.get("/groups").await.ok()["groups"][0]["paused"], json!(true));
    rig.fill("t", 0..1).await;
    nothing(&mut member).await;
    for _ in 0..2 {
        assert_eq!(
            rig.post("/groups/t/g/resume?x=1", "").await.ok(),
            json!({"paused": false, "ignored": ["x"]})
        );
    }
    next(&mut member).await;
    for action in ["pause", "resume"] {
        rig.post(&format!("/groups/t/none/{action}"), "").await.error(404, "not_found");
        rig.post(&format!("/groups/a..b/g/{action}"), "").await.error(400, "bad_topic");
    }
}

#[tokio::test]
async fn pausing_and_settling_need_the_scope_admin() {
    let rig = Rig::with_tokens(&[("reader", &["subscribe:**", "publish:**"]), ("admin", &["admin"])]);
    rig.bus.subscribe("t", "g").await.expect("joined");
    for (method, path) in [
        ("POST", "/groups/t/g/pause"),
        ("POST", "/groups/t/g/resume"),
        ("POST", "/groups/t/g/seek?preview=1"),
        ("POST", "/groups/t/g/settle"),
        ("GET", "/settings"),
    ] {
        let send = async |token: &str| {
            let request = request(method, path).header("authorization", format!("Bearer {token}"));
            rig.send(request.body(Body::from(r#"{"to":"latest"}"#)).expect("a request")).await
        };
        let message = send("reader").await.error(403, "forbidden");
        assert!(message.contains("admin"), "{path}: {message}");
        let status = send("admin").await.status.as_u16();
        assert_eq!(status, if path.ends_with("settle") { 400 } else { 200 }, "{path}");
    }
}

#[tokio::test]
async fn a_preview_counts_what_a_seek_would_do_and_changes_nothing() {
    let rig = Rig::open();
    rig.fill("t", 0..5).await;
    let mut member = rig.bus.subscribe("t", "g").from_earliest().max_in_flight(1).await.expect("joined");
    for _ in 0..3 {
        next(&mut member).await.ack().await.expect("acked");
    }
    let fourth = next(&mut member).await;
    let preview = async |to: Value| post(&rig, "/groups/t/g/seek?preview=1", json!({"to": to})).await;
    let third = rig.get("/groups/t/g").await.ok()["cursor"]["lastId"].clone();
    let counts = |redeliver: u64, skip: u64, lag: u64| json!({"preview": true, "redeliver": redeliver, "skip": skip, "leases": 1, "lag": lag, "exact": true});
    for (to, expected, last_id) in [
        (json!("earliest"), counts(3, 0, 5), Value::Null),
        (json!({"ts": 1}), counts(2, 0, 4), Value::String(String::new())),
        (json!({"afterId": third}), counts(0, 0, 2), third.clone()),
        (json!("latest"), counts(0, 2, 0), Value::String(String::new())),
    ] {
        let mut answer = preview(to.clone()).await.ok();
        let cursor = answer.as_object_mut().expect("an object").remove("cursor").expect("a cursor");
        assert_eq!(answer, expected, "{to}");
        assert_eq!(cursor["topic"], "t");
        if last_id != "" {
            assert_eq!(cursor["lastId"], last_id, "{to}");
        }
    }
    let group = rig.get("/groups/t/g").await.ok();
    assert_eq!((&group["lag"], &group["in_flight"]), (&json!(2), &json!(1)));
    assert!(!fourth.ack().await.expect("acked").stale, "the lease is still valid");
    // With preview=0, the group moves.
    let sought = post(&rig, "/groups/t/g/seek?preview=0", json!({"to": "earliest"})).await.ok();
    assert!(sought.get("preview").is_none(), "{sought}");
    assert_eq!(rig.get("/groups/t/g").await.ok()["lag"], 5);
    preview(json!({"afterId": UNKNOWN})).await.error(404, "unknown_id");
    preview(json!("x")).await.error(400, "bad_request");
    post(&rig, "/groups/t/g/seek?preview=maybe", json!({"to": "latest"})).await.error(400, "bad_request");
    post(&rig, "/groups/t/none/seek?preview=1", json!({"to": "latest"})).await.error(404, "not_found");
}

#[tokio::test]
async fn the_numbers_of_a_preview_are_upper_bounds_if_the_group_has_a_filter() {
    let rig = Rig::open();
    rig.fill("t", 0..3).await;
    let body = r#"{"from":"latest","filter":{"key":"k"}}"#;
    rig.send(request("PUT", "/groups/t/g").body(Body::from(body)).expect("a request")).await.ok();
    let preview = post(&rig, "/groups/t/g/seek?preview=1", json!({"to": "earliest"})).await.ok();
    assert_eq!((&preview["redeliver"], &preview["exact"]), (&json!(3), &json!(false)));
}

#[tokio::test]
async fn every_verdict_applies_to_the_lease_of_the_holder() {
    let rig = Rig::open();
    rig.fill("t", 0..4).await;
    let mut member = rig.bus.subscribe("t", "g").from_earliest().max_in_flight(1).await.expect("joined");
    let settle = async |body: Value| post(&rig, "/groups/t/g/settle", body).await;

    let first = next(&mut member).await;
    let extended = settle(json!({"id": first.id(), "verdict": "extend", "extend_ms": 600_000})).await.ok();
    assert_eq!(extended, json!({"stale": false, "ends_in_ms": 600_000}));
    let lease = &rig.get("/groups/t/g").await.ok()["leases"][0];
    assert!(lease["ends_in_ms"].as_u64() > Some(500_000), "{lease}");
    let released = settle(json!({"id": first.id(), "verdict": "release"})).await.ok();
    assert_eq!(released, json!({"stale": false}));
    let again = next(&mut member).await;
    assert_eq!((again.seq(), again.attempt()), (1, 1), "the attempt did not count");
    let dead = settle(json!({"id": again.id(), "verdict": "dead", "reason": "bad address"})).await.ok();
    assert_eq!(dead, json!({"stale": false}));
    let letters = rig.get("/replay?topic=dlq.t").await.ok();
    assert_eq!(letters["events"][0]["payload"]["err"], "bad address");

    let second = next(&mut member).await;
    assert_eq!(second.seq(), 2);
    let dead =
        settle(json!({"id": second.id(), "verdict": "nack", "dead": true, "reason": "old"})).await.ok();
    assert_eq!(dead, json!({"stale": false}));
    assert_eq!(rig.get("/replay?topic=dlq.t").await.ok()["events"][1]["payload"]["err"], "old");
    let third = next(&mut member).await;
    let nack = settle(json!({"id": third.id(), "verdict": "nack", "delay_ms": 0})).await.ok();
    assert_eq!(nack, json!({"stale": false}));
    let third = next(&mut member).await;
    assert_eq!((third.seq(), third.attempt()), (3, 2));
    let ack = settle(json!({"id": third.id(), "verdict": "ack", "extend_ms": 5, "reason": "x"})).await.ok();
    assert_eq!(ack, json!({"stale": false, "ignored": ["extend_ms", "reason"]}));

    for verdict in ["ack", "nack", "dead", "release", "extend"] {
        for id in [third.id().to_string(), UNKNOWN.to_owned()] {
            let answer = settle(json!({"id": id, "verdict": verdict, "extend_ms": 5_000})).await.ok();
            assert_eq!(answer["stale"], true, "{verdict} {id}");
        }
    }
    for body in [
        json!({"id": UNKNOWN, "verdict": "extend"}),
        json!({"id": UNKNOWN, "verdict": "extend", "extend_ms": "long"}),
        json!({"id": UNKNOWN, "verdict": "extend", "extend_ms": 86_400_001}),
        json!({"id": UNKNOWN, "verdict": "drop"}),
        json!({"id": UNKNOWN, "verdict": 5}),
        json!({"verdict": "release"}),
        json!({"id": "x", "verdict": "dead"}),
    ] {
        settle(body.clone()).await.error(400, "bad_request");
    }
    post(&rig, "/groups/t/none/settle", json!({"id": UNKNOWN, "verdict": "release"}))
        .await
        .error(404, "not_found");
}

#[tokio::test]
async fn settings_are_shown_as_the_program_lists_them() {
    let mut options = token_options(&[("admin", &["admin"])]);
    let setting = |value: u64| ShownSetting {
        name: "limits.max_topics".to_owned(),
        value: json!(value),
        source: SettingSource::File,
        place: Some("prombus.toml:3".to_owned()),
    };
    options.shown_settings = ShownSettings::new(vec![setting(5)]);
    let shown = options.shown_settings.clone();
    let rig = Rig::with(options);
    let get = async || {
        let request = request("GET", "/settings").header("authorization", "Bearer admin");
        rig.send(request.body(Body::empty()).expect("a request")).await.ok()
    };
    let row = json!({"name": "limits.max_topics", "value": 5, "source": "file", "place": "prombus.toml:3"});
    assert_eq!(get().await, json!({"settings": [row]}));
    shown.replace(vec![setting(6)]);
    assert_eq!(get().await["settings"][0]["value"], 6);
}
