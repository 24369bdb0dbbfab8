//! Options and unknown fields of frames.

use crate::attempts::http;
use crate::rig::{Client, Rig, Seen, options};
use prombus_server::{AuthOptions, ServerOptions, TokenHash, TokenOptions};
use serde_json::{Value, json};

/// A token with this name; its secret is `<name>-secret`.
fn with_token(name: &str, scopes: &[&str]) -> ServerOptions {
    let scopes = scopes.iter().map(|scope| scope.parse().expect("a scope")).collect();
    let token = TokenOptions { name: name.into(), secret: TokenHash::of(&format!("{name}-secret")), scopes };
    let auth = AuthOptions { tokens: vec![token], jwt: None, rules: Vec::new() };
    ServerOptions { auth, ..options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_a_frame_is_an_error_and_stores_nothing() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    let publish = json!({"op": "PUBLISH", "topic": "t", "payload": 1, "key": "k"});
    let answer = client.err(publish, "bad_request").await;
    assert_eq!(answer["msg"], "\"key\" has no effect here: did you mean \"opts.key\"?");
    for opts in
        [json!({"maxinflight": 1}), json!({"maxInFlight": 1, "max_in_flight": 2}), json!({"filters": {}})]
    {
        let subscribe = json!({"op": "SUBSCRIBE", "topic": "t", "group": "g", "opts": opts});
        client.err(subscribe, "bad_request").await;
    }
    assert!(rig.bus.topics().await.expect("topics").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_fields_are_listed_in_every_ok() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    let list = json!(["colour", "size"]);
    let with = |mut frame: Value| {
        frame["colour"] = json!("red");
        frame["size"] = json!(1);
        frame
    };
    let about = json!({"topic": "t", "group": "g"});
    let named = |op: &str| {
        let mut frame = about.clone();
        frame["op"] = json!(op);
        with(frame)
    };
    assert_eq!(client.ok(with(json!({"op": "AUTH", "token": "x"}))).await["ignored"], list);
    assert_eq!(client.ok(named("SUBSCRIBE")).await["ignored"], list);
    // Between other frames, and repeatedly: frames of the same shape are parsed by a fast path.
    for round in 0..3 {
        let plain = json!({"op": "PUBLISH", "topic": "t", "payload": round});
        assert_eq!(client.ok(plain.clone()).await.get("ignored"), None);
        assert_eq!(client.ok(with(plain)).await["ignored"], list);
        let inside = json!({"op": "PUBLISH", "topic": "t", "payload": 1, "opts": {"key": "k", "colour": 1}});
        assert_eq!(client.ok(inside).await["ignored"], json!(["colour"]));
    }
    // One batch, in which some frames have ignored fields.
    for n in 0..4 {
        let frame = json!({"op": "PUBLISH", "topic": "t", "payload": n, "corr": n});
        client.send(if n % 2 == 0 { frame } else { with(frame) }).await;
    }
    for n in 0..4 {
        let answer = client.answer().await;
        assert_eq!((&answer["corr"], answer.get("ignored")), (&json!(n), (n % 2 == 1).then_some(&list)));
    }
    for op in ["PAUSE", "RESUME", "CURSOR"] {
        assert_eq!(client.ok(named(op)).await["ignored"], list, "{op}");
    }
    for (op, is_stale) in [("ACK", false), ("NACK", false), ("ACK", true), ("NACK", true)] {
        let mut frame = named(op);
        frame["id"] = match is_stale {
            false => client.event().await["event"]["id"].clone(),
            true => json!("018f0000-0000-7000-8000-000000000000"),
        };
        let answer = client.ok(frame).await;
        assert_eq!((&answer["ignored"], answer.get("stale").is_some()), (&list, is_stale), "{op}");
    }
    let mut seek = named("SEEK");
    seek["to"] = json!("latest");
    assert_eq!(client.ok(seek).await["ignored"], list);
    assert_eq!(client.ok(named("UNSUBSCRIBE")).await["ignored"], list);
    let again = client.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 1})).await;
    assert_eq!(again.get("ignored"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_the_same_over_websocket_and_http() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    let publish =
        json!({"op": "PUBLISH", "topic": "t", "payload": 1, "opts": {"idempotency_key": "order 17"}});
    let first = client.ok(publish).await;
    let key = [("idempotency-key", "order 17")];
    let (status, body) = http(rig.address, "POST", "/publish/t", &key, "1").await;
    let second: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &second["id"], &second["duplicate"]), (200, &first["id"], &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn nack_with_dead_gives_up_at_once() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({})).await;
    client.subscribe("dlq.t", "letters", json!({})).await;
    let id = client.publish("t", json!("poison")).await["id"].clone();
    assert_eq!(client.event().await["event"]["id"], id);
    let nack = json!({"op": "NACK", "topic": "t", "group": "g", "id": id, "reason": "never", "dead": true});
    client.ok(nack.clone()).await;
    let letter = client.event().await["event"]["payload"].clone();
    assert_eq!((&letter["err"], &letter["attempts"]), (&json!("never"), &json!(1)));
    assert_eq!(client.ok(nack).await["stale"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn members_have_their_own_name_or_that_of_their_token() {
    let rig = Rig::start(with_token("ann", &["admin", "subscribe:**", "publish:**"])).await;
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    for (client, opts) in [(&mut first, json!({"name": "worker 1"})), (&mut second, json!({}))] {
        client.ok(json!({"op": "AUTH", "token": "ann-secret"})).await;
        client.subscribe("t", "g", opts).await;
    }
    let auth = [("authorization", "Bearer ann-secret")];
    let (_, body) = http(rig.address, "GET", "/groups/t/g", &auth, "").await;
    let info: Value = serde_json::from_str(&body).expect("JSON");
    let names: Vec<_> =
        info["member_list"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["worker 1", "ann"]);
    let label = info["member_list"][0]["label"].as_str().expect("a label");
    assert!(label.starts_with("worker 1 (ws 127.0.0.1:"), "{label}");
    let (_, metrics) = http(rig.address, "GET", "/metrics", &auth, "").await;
    assert!(
        metrics.contains("prombus_member_inflight{topic=\"t\",group=\"g\",member=\"worker 1\"} 0"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_expire_ms_can_be_deleted_by_tokens_that_may_join_it() {
    let rig = Rig::start(with_token("ann", &["subscribe:t", "publish:t"])).await;
    let auth = [("authorization", "Bearer ann-secret")];
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": "ann-secret"})).await;
    client.subscribe("t", "short", json!({"expireMs": 60_000})).await;
    client.subscribe("t", "long", json!({})).await;
    let status = async |path: &str| http(rig.address, "DELETE", path, &auth, "").await.0;
    assert_eq!(status("/groups/t/long").await, 403);
    assert_eq!(status("/groups/t/none").await, 403);
    assert_eq!(status("/groups/other/short").await, 403);
    assert_eq!(status("/groups/t/short").await, 200);
    let Seen::Frame(gone) = client.see().await else { panic!("an ERR was expected") };
    assert_eq!(gone["code"], "not_subscribed");
    assert_eq!(status("/groups/t/short").await, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribe_says_whether_the_group_is_new() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    assert_eq!(client.subscribe("t", "g", json!({"from": "latest"})).await["created"], true);
    let mut other: Client = rig.client().await;
    assert_eq!(other.subscribe("t", "g", json!({"from": "earliest"})).await["created"], false);
    let again = json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"});
    let msg = other.err(again, "already_subscribed").await["msg"].clone();
    assert_eq!(msg, "this connection is already subscribed to t as group g");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addressee_needs_the_scope_admin_and_a_group_that_exists() {
    let addressed = |group: &str, corr: u32| {
        let addressee = json!({"subscription": "t", "group": group});
        json!({"op": "PUBLISH", "topic": "t", "payload": corr, "corr": corr, "opts": {"addressee": addressee}})
    };
    let rig = Rig::start(with_token("publisher", &["publish:**", "subscribe:**"])).await;
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": "publisher-secret"})).await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"})).await;
    let answer = client.err(addressed("g", 1), "forbidden").await;
    assert_eq!(answer["msg"], "\"addressee\" needs a token with the scope \"admin\"");

    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.ok(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"})).await;
    let answer = client.err(addressed("none", 1), "not_found").await;
    assert!(answer["msg"].as_str().is_some_and(|msg| msg.contains("\"none\"")), "{answer}");
    // An unknown addressee does not affect the events around it.
    client.ok(json!({"op": "PUBLISH", "topic": "t", "payload": 0})).await;
    assert_eq!(client.ok(addressed("g", 2)).await["seq"], 2);
}
