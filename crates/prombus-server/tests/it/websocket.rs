//! Every frame, with its answer and error codes.

use crate::rig::{Client, Rig, Seen, options};
use futures_util::SinkExt;
use prombus_server::ServerOptions;
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

fn ids(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["event"]["payload"]["n"].as_u64().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_is_answered_with_id_and_seq_and_a_repetition_with_duplicate() {
    let rig = Rig::start(options()).await;
    let mut client = rig.client().await;
    let first = client.publish("orders", json!({"n": 1})).await;
    assert_eq!(first["seq"], 1);
    let id = first["id"].clone();
    let frame = json!({"op": "PUBLISH", "topic": "orders", "payload": 2, "opts": {"id": id}});
    let again = client.ok(frame).await;
    assert_eq!(again, json!({"op": "OK", "corr": again["corr"], "id": id, "seq": 1, "duplicate": true}));
    assert_eq!(client.publish("orders", json!(null)).await["seq"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_published_delivered_and_acked() {
    let rig = Rig::start(options()).await;
    let (mut publisher, mut consumer) = (rig.client().await, rig.client().await);
    assert_eq!(consumer.subscribe("orders", "billing", json!({})).await["created"], true);
    let opts = json!({"key": "k", "headers": {"h": "v"}, "tags": ["t"]});
    let published =
        publisher.ok(json!({"op": "PUBLISH", "topic": "orders", "payload": {"n": 1}, "opts": opts})).await;
    let event = consumer.event().await;
    assert_eq!((&event["topic"], &event["group"]), (&json!("orders"), &json!("billing")));
    let record = &event["event"];
    assert_eq!((&record["id"], &record["seq"]), (&published["id"], &published["seq"]));
    assert_eq!(record["payload"], json!({"n": 1}));
    assert_eq!(
        (&record["key"], &record["headers"], &record["tags"]),
        (&json!("k"), &json!({"h": "v"}), &json!(["t"]))
    );
    assert_eq!((&event["ctx"]["attempt"], &event["ctx"]["max_attempts"]), (&json!(1), &json!(5)));
    let lease = event["ctx"]["ack_deadline_ms"].as_u64().expect("a number");
    assert!((29_000..=30_000).contains(&lease), "{lease}");
    let settle = json!({"op": "ACK", "topic": "orders", "group": "billing", "id": record["id"]});
    assert_eq!(consumer.ok(settle.clone()).await.get("stale"), None);
    assert_eq!(consumer.ok(settle).await["stale"], true);
    let cursor = consumer.ok(json!({"op": "CURSOR", "topic": "orders", "group": "billing"})).await;
    assert_eq!(cursor["cursor"]["lastId"], record["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nacked_event_is_redelivered_and_becomes_a_dead_letter_after_the_fifth_nack() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({})).await;
    client.subscribe("dlq.orders", "d", json!({})).await;
    let published = client.publish("orders", json!({"n": 1})).await;
    for attempt in 1..=5 {
        let event = client.event().await;
        assert_eq!(event["ctx"]["attempt"], attempt);
        let reason = if attempt == 1 { Value::Null } else { json!("nacked") };
        assert_eq!(event["ctx"]["reason"], reason);
        let id = &event["event"]["id"];
        client
            .ok(json!({"op": "NACK", "topic": "orders", "group": "g", "id": id, "reason": "no", "delay_ms": 1}))
            .await;
    }
    let letter = client.event().await;
    assert_eq!(letter["topic"], "dlq.orders");
    let payload = &letter["event"]["payload"];
    assert_eq!(payload["original"]["id"], published["id"]);
    assert_eq!((&payload["err"], &payload["attempts"]), (&json!("no"), &json!(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_redelivered_when_its_lease_expires_unless_it_was_extended() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({"ackTimeoutMs": 400})).await;
    client.publish("orders", json!({"n": 1})).await;
    let event = client.event().await;
    let id = event["event"]["id"].clone();
    client.ok(json!({"op": "MODACK", "topic": "orders", "group": "g", "id": id, "extend_ms": 2000})).await;
    assert!(client.is_quiet(900).await);
    let again = client.event().await;
    assert_eq!((&again["ctx"]["attempt"], &again["ctx"]["reason"]), (&json!(2), &json!("lease_expired")));
    client.ok(json!({"op": "ACK", "topic": "orders", "group": "g", "id": id})).await;
    let unknown = json!({"op": "MODACK", "topic": "orders", "group": "g", "id": id, "extend_ms": 2000});
    client.err(unknown, "unknown_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsubscribe_gives_deliveries_to_others_at_once_and_counts_no_attempt() {
    let rig = Rig::memory().await;
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    first.subscribe("orders", "g", json!({})).await;
    first.publish("orders", json!({"n": 1})).await;
    first.event().await;
    assert_eq!(second.subscribe("orders", "g", json!({})).await.get("created"), Some(&json!(false)));
    assert!(second.is_quiet(100).await);
    first.ok(json!({"op": "UNSUBSCRIBE", "topic": "orders", "group": "g"})).await;
    assert_eq!(second.event().await["ctx"]["attempt"], 1);
    first.err(json!({"op": "UNSUBSCRIBE", "topic": "orders", "group": "g"}), "not_subscribed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_close_counts_no_attempt_and_a_broken_connection_does() {
    let rig = Rig::memory().await;
    let mut watcher = rig.client().await;
    watcher.publish("orders", json!({"n": 1})).await;
    let mut closes = rig.client().await;
    closes.subscribe("orders", "g", json!({"from": "earliest"})).await;
    assert_eq!(closes.event().await["ctx"]["attempt"], 1);
    closes.socket.close(None).await.expect("it closes");
    let mut breaks = rig.client().await;
    breaks.subscribe("orders", "g", json!({})).await;
    assert_eq!(breaks.event().await["ctx"]["attempt"], 1);
    drop(breaks);
    watcher.subscribe("orders", "g", json!({})).await;
    let event = watcher.event().await;
    assert_eq!((&event["ctx"]["attempt"], &event["ctx"]["reason"]), (&json!(2), &json!("member_lost")));
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_stops_deliveries_and_resume_starts_them() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({})).await;
    client.ok(json!({"op": "PAUSE", "topic": "orders", "group": "g"})).await;
    client.publish("orders", json!({"n": 1})).await;
    assert!(client.is_quiet(200).await);
    client.ok(json!({"op": "RESUME", "topic": "orders", "group": "g"})).await;
    assert_eq!(client.event().await["event"]["payload"]["n"], 1);
    client.err(json!({"op": "PAUSE", "topic": "orders", "group": "x"}), "not_subscribed").await;
    client.err(json!({"op": "RESUME", "topic": "x", "group": "g"}), "not_subscribed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seek_goes_back_and_returns_the_cursor() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("orders", "g", json!({})).await;
    for n in 1..=3 {
        client.publish("orders", json!({"n": n})).await;
    }
    let mut ids_seen = Vec::new();
    for _ in 1..=3 {
        let event = client.event().await;
        let id = event["event"]["id"].clone();
        client.ok(json!({"op": "ACK", "topic": "orders", "group": "g", "id": id})).await;
        ids_seen.push(id);
    }
    let to = json!({"from": "afterId", "afterId": ids_seen[0]});
    let sought = client.ok(json!({"op": "SEEK", "topic": "orders", "group": "g", "to": to})).await;
    assert_eq!(sought["cursor"]["lastId"], ids_seen[0]);
    let events = [client.event().await, client.event().await];
    assert_eq!(ids(&events), [2, 3]);
    let unknown = json!({"from": "afterId", "afterId": uuid::Uuid::nil()});
    client.err(json!({"op": "SEEK", "topic": "orders", "group": "g", "to": unknown}), "unknown_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_limits_the_unsettled_events_of_a_member() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    for n in 1..=300 {
        client.publish("orders", json!({"n": n})).await;
    }
    client.subscribe("orders", "default", json!({"from": "earliest"})).await;
    let mut events = Vec::new();
    for _ in 0..100 {
        events.push(client.event().await);
    }
    assert!(client.is_quiet(200).await, "100 is the default over WebSocket");
    assert_eq!(ids(&events), (1..=100).collect::<Vec<_>>());
    let id = &events[50]["event"]["id"];
    client.send(json!({"op": "ACK", "topic": "orders", "group": "default", "id": id})).await;
    assert_eq!(client.event().await["event"]["payload"]["n"], 101);
    assert!(client.is_quiet(100).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_connection_are_handled_in_order() {
    let rig = Rig::start(options()).await;
    let mut client = rig.client().await;
    // All frames at once: events before SUBSCRIBE are not delivered, events after it are.
    for n in 1..=50 {
        client
            .socket
            .feed(Message::text(json!({"op": "PUBLISH", "topic": "t", "payload": {"n": n}}).to_string()))
            .await
            .expect("fed");
    }
    client
        .socket
        .feed(Message::text(json!({"op": "SUBSCRIBE", "topic": "t", "group": "g"}).to_string()))
        .await
        .expect("fed");
    for n in 51..=100 {
        client
            .socket
            .feed(Message::text(json!({"op": "PUBLISH", "topic": "t", "payload": {"n": n}}).to_string()))
            .await
            .expect("fed");
    }
    client.socket.flush().await.expect("flushed");
    let (mut seqs, mut events) = (Vec::new(), Vec::new());
    while events.len() < 50 || seqs.len() < 100 {
        let frame = client.frame().await;
        match frame["op"].as_str() {
            Some("EVENT") => events.push(frame),
            _ => seqs.extend(frame["seq"].as_u64()),
        }
    }
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
    assert_eq!(ids(&events), (51..=100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_has_the_pattern_and_the_topic_of_the_event() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    client.subscribe("orders.*", "g", json!({"topics": ["refunds"]})).await;
    client.publish("orders.eu", json!({"n": 1})).await;
    client.publish("refunds", json!({"n": 2})).await;
    client.publish("orders.eu.west", json!({"n": 3})).await;
    for (n, topic) in [(1, "orders.eu"), (2, "refunds")] {
        let event = client.event().await;
        assert_eq!((&event["topic"], &event["event"]["topic"]), (&json!("orders.*"), &json!(topic)));
        assert_eq!(event["event"]["payload"]["n"], n);
        client.ok(json!({"op": "ACK", "topic": "orders.*", "group": "g", "id": event["event"]["id"]})).await;
    }
    assert!(client.is_quiet(100).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_frames_get_one_err_each_and_the_connection_stays_open() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    let deep = format!(
        "{{\"op\":\"PUBLISH\",\"topic\":\"t\",\"payload\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let bad = [
        ("", "bad_json"),
        ("nope", "bad_json"),
        ("{\"op\":", "bad_json"),
        ("[]", "bad_request"),
        ("3", "bad_request"),
        ("{}", "bad_request"),
        ("{\"op\":7}", "bad_request"),
        ("{\"op\":\"DANCE\"}", "bad_request"),
        ("{\"op\":\"PUBLISH\",\"topic\":3,\"payload\":1}", "bad_request"),
        ("{\"op\":\"PUBLISH\",\"topic\":\"a b\",\"payload\":1}", "bad_topic"),
        ("{\"op\":\"PUBLISH\",\"topic\":\"a.*\",\"payload\":1}", "bad_topic"),
        ("{\"op\":\"PUBLISH\",\"topic\":\"a\"}", "bad_request"),
        ("{\"op\":\"ACK\",\"topic\":\"a\",\"group\":\"g\",\"id\":\"x\"}", "bad_request"),
        ("{\"op\":\"SUBSCRIBE\",\"topic\":\"a\",\"group\":\"g\",\"opts\":{\"batchSize\":0}}", "bad_request"),
        (&deep, "bad_request"),
    ];
    for (text, code) in bad {
        client.send_text(text).await;
        let answer = client.frame().await;
        assert_eq!((&answer["op"], &answer["code"]), (&json!("ERR"), &json!(code)), "{text:.60} {answer}");
    }
    client.socket.send(Message::binary(vec![1, 2, 3])).await.expect("it sends");
    assert_eq!(client.frame().await["code"], "bad_request");
    assert!(client.is_quiet(50).await, "one ERR each");
    client.publish("t", json!(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_frame_gets_too_large_and_a_close_with_1009() {
    let rig = Rig::memory().await;
    let mut client = rig.client().await;
    let over_payload = "x".repeat((1 << 20) + 10);
    client.err(json!({"op": "PUBLISH", "topic": "t", "payload": over_payload}), "too_large").await;
    client.publish("t", json!(1)).await;
    let over_frame = "x".repeat(3 << 20);
    let _ = client.socket.send(Message::text(over_frame)).await;
    match client.see().await {
        Seen::Frame(frame) => {
            assert_eq!(frame["code"], "too_large");
            assert_eq!(client.see().await, Seen::Close(Some(1009)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_conflicts_have_their_codes() {
    let mut limited: ServerOptions = options();
    limited.connections.max_subscriptions = 2;
    let rig = Rig::with(limited).await;
    let mut client = rig.client().await;
    client.subscribe("a", "g", json!({"filter": {"key": "k"}})).await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"}), "already_subscribed").await;
    client.subscribe("b", "g", json!({})).await;
    client.err(json!({"op": "SUBSCRIBE", "topic": "c", "group": "g"}), "limit_reached").await;
    client
        .err(json!({"op": "ACK", "topic": "x", "group": "g", "id": uuid::Uuid::nil()}), "not_subscribed")
        .await;
    let mut other = rig.client().await;
    other.err(json!({"op": "SUBSCRIBE", "topic": "a", "group": "g"}), "group_conflict").await;
    let after = json!({"from": "afterId", "afterId": uuid::Uuid::nil()});
    other.err(json!({"op": "SUBSCRIBE", "topic": "n", "group": "g", "opts": after}), "unknown_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_answers_frames_in_progress_and_closes_with_1001() {
    let mut rig = Rig::start(options()).await;
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({})).await;
    for n in 0..500 {
        let frame = json!({"op": "PUBLISH", "topic": "t", "payload": {"n": n}, "corr": n});
        client.socket.feed(Message::text(frame.to_string())).await.expect("fed");
    }
    client.socket.flush().await.expect("flushed");
    // The first answer shows that the frames are being handled.
    client.frame().await;
    rig.begin_stop();
    let mut answered = 0;
    let closed = loop {
        match client.see().await {
            Seen::Frame(frame) => answered += u64::from(frame["op"] == "OK"),
            other => break other,
        }
    };
    assert_eq!(closed, Seen::Close(Some(1001)));
    let last = rig.bus.topics().await.expect("topics")[0].last_seq;
    assert!(answered <= last && last <= answered + 2, "{answered} answered, {last} kept");
    let begun = std::time::Instant::now();
    rig.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_closed_and_others_are_not_affected() {
    let mut impatient: ServerOptions = options();
    impatient.connections.stall_timeout = Duration::from_millis(700);
    let rig = Rig::with(impatient).await;
    let mut deaf = rig.client().await;
    let mut other = rig.client().await;
    deaf.subscribe("t", "deaf", json!({"maxInFlight": 10000})).await;
    other.subscribe("t", "other", json!({})).await;
    let payload = "x".repeat(10_000);
    for _ in 0..1500 {
        other.publish("t", json!(payload)).await;
        let event = other.event().await;
        other.send(json!({"op": "ACK", "topic": "t", "group": "other", "id": event["event"]["id"]})).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let closed = loop {
        match deaf.see().await {
            Seen::Frame(_) => {}
            other => break other,
        }
    };
    assert_eq!(closed, Seen::Close(Some(1013)));
    // Events that were never sent count no attempt: most are delivered as the first attempt.
    let mut next = Client::connect(rig.address).await;
    next.subscribe("t", "deaf", json!({"maxInFlight": 10000, "batchSize": 10000})).await;
    let mut attempts = [0, 0, 0];
    for _ in 0..1500 {
        attempts[next.event().await["ctx"]["attempt"].as_u64().expect("a number") as usize] += 1;
    }
    assert!(attempts[1] > 0 && attempts[2] < 1500, "{attempts:?}");
}

/// An ack of a lease that this connection never had, as after a reconnect, has no effect except that it is counted.
#[tokio::test]
async fn an_ack_or_nack_of_an_event_that_this_connection_never_had_is_counted_as_stale() {
    let rig = Rig::memory().await;
    let (mut first, mut second) = (rig.client().await, rig.client().await);
    first.subscribe("t", "g", json!({})).await;
    first.publish("t", json!(1)).await;
    let id = first.event().await["event"]["id"].clone();
    second.subscribe("t", "g", json!({})).await;
    let frame = |op: &str| json!({"op": op, "topic": "t", "group": "g", "id": id});
    assert_eq!(second.ok(frame("ACK")).await["stale"], json!(true));
    assert_eq!(second.ok(frame("NACK")).await["stale"], json!(true));
    // Without a corr it is not answered, but still counted.
    second.send(frame("ACK")).await;
    second.publish("other", json!(1)).await;
    let group = rig.bus.backend().group("t", "g").await.unwrap().unwrap();
    assert_eq!((group.counters.stale, group.counters.acked, group.in_flight), (3, 0, 1));
    // An id that no topic has.
    rig.bus.ack("t", "g", uuid::Uuid::from_u128(7)).await.unwrap();
    assert_eq!(rig.bus.backend().group("t", "g").await.unwrap().unwrap().counters.stale, 4);
}
