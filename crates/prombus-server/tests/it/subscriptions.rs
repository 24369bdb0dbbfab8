//! Subscriptions: counts of deliveries in flight, paused members, new tokens, and refused publishes.

use crate::raw_client::metric;
use crate::rig::{Rig, options};
use prombus_server::ServerOptions;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_are_no_longer_in_flight_are_not_counted() {
    let rig = Rig::memory().await;
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({"ackTimeoutMs": 300, "maxInFlight": 1})).await;
    rig.bus.publish("t", &1).await.expect("published");
    first.event().await;
    first.ok(json!({"op": "PAUSE", "topic": "t", "group": "g"})).await;
    let mut second = rig.client().await;
    second.subscribe("t", "g", json!({})).await;
    let event = second.event().await;
    second.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": event["event"]["id"]})).await;
    sleep(Duration::from_millis(100)).await;
    let of_group = metric(rig.address, "events_inflight{topic=\"t\",group=\"g\"}").await;
    let of_sockets = metric(rig.address, "ws_inflight{topic=\"t\",group=\"g\"}").await;
    assert_eq!((of_group, of_sockets), (0.0, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_seek_nothing_is_counted_as_in_flight() {
    let rig = Rig::memory().await;
    let mut first = rig.client().await;
    first.subscribe("t", "g", json!({})).await;
    for n in 0..5 {
        rig.bus.publish("t", &n).await.expect("published");
        first.event().await;
    }
    first.ok(json!({"op": "SEEK", "topic": "t", "group": "g", "to": "latest"})).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(metric(rig.address, "ws_inflight{topic=\"t\",group=\"g\"}").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_member_does_not_withhold_events_from_others() {
    let rig = Rig::memory().await;
    let mut paused = rig.client().await;
    paused.subscribe("t", "g", json!({})).await;
    let mut other = rig.client().await;
    other.subscribe("t", "g", json!({})).await;
    paused.ok(json!({"op": "PAUSE", "topic": "t", "group": "g"})).await;
    for n in 0..20 {
        rig.bus.publish("t", &n).await.expect("published");
        let begun = Instant::now();
        let event = other.event().await;
        assert_eq!(event["event"]["payload"], n);
        assert!(begun.elapsed() < Duration::from_millis(500), "{n}: {:?}", begun.elapsed());
        other.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": event["event"]["id"]})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_ids_in_two_topics_of_a_pattern_are_not_slow() {
    let rig = Rig::memory().await;
    let count = 20_000u128;
    for topic in ["p.a", "p.b"] {
        let mut batch = rig.bus.backend().batch();
        for n in 1..=count {
            let id = Some(uuid::Uuid::from_u128(n << 80 | 0x7000_8000_0000_0000_0000));
            let options = prombus::PublishOptions { id, ..prombus::PublishOptions::default() };
            batch.push(prombus::Topic::new(topic).expect("a topic"), &1, &options).expect("it fits");
        }
        rig.bus.backend().publish(batch).await.expect("published");
    }
    let mut client = rig.client().await;
    let begun = Instant::now();
    client
        .subscribe("p.*", "g", json!({"from": "earliest", "maxInFlight": 100_000, "batchSize": 10_000}))
        .await;
    let mut ids = Vec::new();
    for _ in 0..2 * count {
        ids.push(client.event().await["event"]["id"].clone());
    }
    let delivered = begun.elapsed();
    for id in &ids {
        client.send(json!({"op": "ACK", "topic": "p.*", "group": "g", "id": id})).await;
    }
    client.ok(json!({"op": "AUTH"})).await;
    println!("delivered in {delivered:?}, acked in {:?}", begun.elapsed() - delivered);
    // Many times longer than on an idle machine.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?} {:?}", delivered, begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_of_a_new_token_apply_to_existing_subscriptions() {
    let mut with_auth: ServerOptions = options();
    for (secret, scopes) in [("all", prombus_server::Scope::all()), ("none", Vec::new())] {
        with_auth.auth.tokens.push(prombus_server::TokenOptions {
            name: secret.to_owned(),
            secret: prombus_server::TokenHash::of(secret),
            scopes,
        });
    }
    let rig = Rig::with(with_auth).await;
    let mut client = rig.client().await;
    client.ok(json!({"op": "AUTH", "token": "all"})).await;
    client.subscribe("t", "g", json!({})).await;
    client.ok(json!({"op": "AUTH", "token": "none"})).await;
    client.err(json!({"op": "CURSOR", "topic": "t", "group": "g"}), "forbidden").await;
    rig.bus.publish("t", &1).await.expect("published");
    assert!(
        timeout(Duration::from_secs(1), client.event()).await.is_err(),
        "an EVENT that this token may not read"
    );
}

/// If the empty batch of a refused publish were kept, the next event would get its time, and a shutdown would wait for its
/// answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_publish_affects_neither_the_next_event_nor_a_shutdown() {
    let mut rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.publish("t", json!(1)).await;
    client.subscribe("t", "g", json!({"from": "latest"})).await;
    let over_payload = "x".repeat((1 << 20) + 10);
    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": over_payload}), "too_large").await;
    sleep(Duration::from_millis(1_500)).await;
    let before_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    client.publish("t", json!(2)).await;
    let ts = client.event().await["event"]["ts"].as_i64().unwrap();
    assert!(ts >= before_ms - 1_000, "{} ms too early", before_ms - ts);

    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": over_payload}), "too_large").await;
    let stopping = Instant::now();
    rig.begin_stop();
    while !matches!(client.see().await, crate::rig::Seen::Close(_)) {}
    assert!(stopping.elapsed() < Duration::from_secs(2), "{:?}", stopping.elapsed());
    drop(client);
    rig.stop().await;
}
