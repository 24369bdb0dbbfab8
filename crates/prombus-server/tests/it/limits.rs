//! Rates, metrics, TLS and limits.

use crate::rig::{Client, Rig, options};
use crate::tls_rig::TlsRig;
use futures_util::{SinkExt, StreamExt};
use prombus::{Bus, Pattern, Topic, TopicOptions, TopicRule};
use prombus_server::{Rate, ServerOptions};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_tungstenite::Connector;
use tokio_tungstenite::tungstenite::Message;

/// A topic with a burst of one event and this publish rate.
fn burst_of_one(per_second: f64) -> TopicOptions {
    TopicOptions { publish_rate: Some(per_second), publish_burst: Some(1.0), ..TopicOptions::default() }
}

/// A bus on which topics of this pattern have a burst of one event and this publish rate.
fn bus_with_rate(pattern: &str, per_second: f64) -> Bus {
    let name = Pattern::new(pattern).expect("a pattern");
    let rule = TopicRule { name, options: burst_of_one(per_second) };
    Bus::builder().topic(rule).memory().expect("a bus")
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_over_a_rate_get_the_time_to_retry() {
    let mut limited: ServerOptions = options();
    limited.rates.connection_publish = Some(Rate { per_second: 20.0, burst: 5.0 });
    let rig = Rig::over(bus_with_rate("slow.*", 0.5), limited).await;
    let mut client = rig.client().await;
    for n in 0..5 {
        client.publish("fast", json!(n)).await;
    }
    let refused = client.err(json!({"op": "PUBLISH", "topic": "fast", "payload": 6}), "rate_limited").await;
    let wait = refused["retry_after_ms"].as_u64().expect("a number");
    assert!((1..=50).contains(&wait), "{refused}");
    tokio::time::sleep(Duration::from_millis(wait + 30)).await;
    client.publish("fast", json!(6)).await;
    let mut other = rig.client().await;
    other.publish("slow.a", json!(1)).await;
    let refused = other.err(json!({"op": "PUBLISH", "topic": "slow.a", "payload": 2}), "rate_limited").await;
    assert!(refused["retry_after_ms"].as_u64().expect("a number") > 1000, "{refused}");
    other.publish("slow.b", json!(1)).await;
    let seqs: Vec<_> = rig.bus.topics().await.expect("topics").iter().map(|it| it.last_seq).collect();
    assert_eq!(seqs.iter().sum::<u64>(), 8, "refused events are not stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_over_a_rate_wait_and_none_is_lost() {
    let mut paced: ServerOptions = options();
    paced.rates.connection_deliver = Some(Rate { per_second: 200.0, burst: 20.0 });
    let rig = Rig::with(paced).await;
    for n in 0..120 {
        rig.bus.publish("t", &n).await.expect("published");
    }
    let mut client = rig.client().await;
    let begun = Instant::now();
    client.subscribe("t", "g", json!({"from": "earliest", "maxInFlight": 1000})).await;
    for n in 0..120 {
        assert_eq!(client.event().await["event"]["payload"], n);
    }
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
}

/// The value of a sample.
fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
}

async fn metrics(rig: &Rig) -> String {
    let url = format!("http://{}/metrics", rig.address);
    let output = tokio::process::Command::new("curl").args(["-sS", &url]).output().await.expect("curl runs");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_events_deliveries_and_commits() {
    let rig = Rig::start(options()).await;
    let slow = Topic::new("slow").expect("a topic");
    rig.bus.set_topic(&slow, burst_of_one(0.1)).await.expect("set");
    let mut client = rig.client().await;
    client.subscribe("t", "g", json!({"maxAttempts": 2})).await;
    for n in 0..4 {
        client.publish("t", json!(n)).await;
    }
    client.publish("slow", json!(1)).await;
    client.err(json!({"op": "PUBLISH", "topic": "slow", "payload": 2}), "rate_limited").await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(client.event().await["event"]["id"].clone());
    }
    client.ok(json!({"op": "ACK", "topic": "t", "group": "g", "id": ids[0]})).await;
    for _ in 0..2 {
        client.ok(json!({"op": "NACK", "topic": "t", "group": "g", "id": ids[1], "delay_ms": 1})).await;
        if client.is_quiet(0).await {
            // The second attempt, after which the event is given up.
            let _ = tokio::time::timeout(Duration::from_secs(1), client.event()).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let text = metrics(&rig).await;
    let group = "{topic=\"t\",group=\"g\"}";
    assert_eq!(sample(&text, "events_published_total{topic=\"t\"}"), 4.0);
    assert_eq!(sample(&text, &format!("events_delivered_total{group}")), 5.0);
    assert_eq!(sample(&text, &format!("events_acked_total{group}")), 1.0);
    assert_eq!(sample(&text, &format!("events_nacked_total{group}")), 2.0);
    assert_eq!(sample(&text, &format!("events_inflight{group}")), 2.0);
    assert_eq!(sample(&text, &format!("ws_inflight{group}")), 2.0);
    assert_eq!(sample(&text, &format!("prombus_group_lag_events{group}")), 2.0);
    assert_eq!(sample(&text, &format!("prombus_events_dead_lettered_total{group}")), 1.0);
    assert_eq!(
        sample(&text, "prombus_events_redelivered_total{topic=\"t\",group=\"g\",reason=\"nacked\"}"),
        1.0
    );
    assert_eq!(sample(&text, "prombus_ws_connections"), 1.0);
    assert_eq!(sample(&text, "prombus_http_requests_total{route=\"/ws\",method=\"GET\",code=\"101\"}"), 1.0);
    assert_eq!(sample(&text, "prombus_rate_limited_total{scope=\"topic\"}"), 1.0);
    assert!(sample(&text, "prombus_log_bytes") > 0.0);
    for name in ["subscribe_poll_duration_ms", "delivery_handler_duration_ms", "delivery_latency_ms"] {
        assert!(sample(&text, &format!("{name}_count{group}")) > 0.0, "{name}");
        let bucket = format!("{name}_bucket{{topic=\"t\",group=\"g\",le=\"+Inf\"}}");
        assert_eq!(sample(&text, &bucket), sample(&text, &format!("{name}_count{group}")));
    }
    assert!(
        sample(&text, "prombus_commit_duration_seconds_count")
            >= sample(&text, "prombus_commit_batch_events_count")
    );
    assert_eq!(sample(&text, "prombus_commit_batch_events_sum"), 6.0, "four, one on slow, one dead letter");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_have_a_limit_and_the_rest_is_summed() {
    let few = ServerOptions { metrics_labels_max: 3, ..options() };
    let rig = Rig::with(few).await;
    let mut client = rig.client().await;
    for n in 0..10 {
        client.publish(&format!("t{n}"), json!(1)).await;
        client.subscribe(&format!("t{n}"), "g", json!({"from": "earliest"})).await;
        client.event().await;
    }
    let text = metrics(&rig).await;
    for (name, label) in
        [("events_published_total", "topic=\"_other\""), ("ws_inflight", "topic=\"_other\",group=\"_other\"")]
    {
        let samples: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect();
        assert_eq!(samples.len(), 4, "{samples:?}");
        assert_eq!(sample(&text, &format!("{name}{{{label}}}")), 7.0);
    }
    // The highest age of the rest, not the sum.
    let name = "prombus_group_oldest_unsettled_age_seconds";
    assert_eq!(text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count(), 4);
    let rest = sample(&text, &format!("{name}{{topic=\"_other\",group=\"_other\"}}"));
    let oldest = sample(&text, &format!("{name}{{topic=\"t0\",group=\"g\"}}"));
    assert!((0.0..=oldest).contains(&rest), "{rest} is later than {oldest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_only_wss_is_accepted() {
    let tls = TlsRig::start().await;
    let rig = &tls.rig;
    let socket = tokio::net::TcpStream::connect(rig.address).await.expect("it connects");
    let url = format!("wss://localhost:{}/ws", rig.address.port());
    let connector = Connector::Rustls(Arc::clone(&tls.client_config));
    let connected = tokio_tungstenite::client_async_tls_with_config(url, socket, None, Some(connector)).await;
    let mut client = Client::over(connected.expect("it connects").0);
    client.subscribe("t", "g", json!({})).await;
    client.publish("t", json!("x".repeat(100_000))).await;
    assert_eq!(client.event().await["event"]["payload"], "x".repeat(100_000));
    assert!(Client::connect_with(rig.address, &[]).await.is_err(), "a client without TLS is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_are_closed_and_the_others_stay_open() {
    let mut few: ServerOptions = options();
    few.connections.max_connections = 3;
    let rig = Rig::with(few).await;
    let mut clients = vec![rig.client().await, rig.client().await, rig.client().await];
    assert!(Client::connect_with(rig.address, &[]).await.is_err());
    clients[0].publish("t", json!(1)).await;
    clients[1].socket.close(None).await.expect("it closes");
    clients.remove(1);
    let until = Instant::now() + Duration::from_secs(5);
    while Client::connect_with(rig.address, &[]).await.is_err() {
        assert!(Instant::now() < until, "the slot of the closed connection is not released");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_publishes_to_topics_over_the_limit_are_refused() {
    let bus = Bus::builder().max_topics(2).memory().expect("a bus");
    let rig = Rig::over(bus, options()).await;
    let mut client = rig.client().await;
    for (corr, topic) in ["a", "b", "c", "a", "d", "b"].into_iter().enumerate() {
        let frame = json!({"op": "PUBLISH", "topic": topic, "payload": 1, "corr": corr});
        client.socket.feed(Message::text(frame.to_string())).await.expect("fed");
    }
    client.socket.flush().await.expect("flushed");
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(client.frame().await);
    }
    answers.sort_by_key(|answer| answer["corr"].as_u64());
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.get("code").cloned().unwrap_or(Value::Null)).collect();
    let refused = json!("limit_reached");
    assert_eq!(codes, [Value::Null, Value::Null, refused.clone(), Value::Null, refused, Value::Null]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_respond_to_pings_is_closed() {
    let mut quick: ServerOptions = options();
    quick.connections.ping_interval = Duration::from_millis(200);
    let rig = Rig::with(quick).await;
    let mut lively = rig.client().await;
    // This client responds to pings when it reads, so the dead one does not read.
    let dead = rig.client().await;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let next = tokio::time::timeout(Duration::from_millis(100), lively.socket.next()).await;
        assert!(matches!(next, Err(_) | Ok(Some(Ok(Message::Ping(_))))), "{next:?}");
    }
    drop(lively.ask(json!({"op": "AUTH"})).await);
    let text = metrics(&rig).await;
    assert_eq!(sample(&text, "prombus_ws_connections"), 1.0);
    drop(dead);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_do_not_expire_while_the_server_does_not_read() {
    // The server does not read from a client that does not read its answers. Meanwhile the client keeps its leases.
    let mut small: ServerOptions = options();
    small.connections.max_queued_bytes = 64 * 1024;
    small.connections.stall_timeout = Duration::from_secs(20);
    let rig = Rig::with(small).await;
    let mut busy = rig.client().await;
    busy.subscribe("t", "g", json!({"ackTimeoutMs": 1500, "maxInFlight": 1})).await;
    rig.bus.publish("t", &1).await.expect("published");
    busy.event().await;
    // Cause large answers, which the client does not read, until the sockets are full in both directions.
    let corr = "c".repeat(200);
    let frame = json!({"op": "CURSOR", "topic": "t", "group": "g", "corr": corr}).to_string();
    let flooding = async {
        loop {
            let sent = tokio::time::timeout(
                Duration::from_millis(500),
                busy.socket.send(Message::text(frame.as_str())),
            )
            .await;
            if sent.is_err() {
                break;
            }
        }
    };
    flooding.await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let group = rig.bus.groups().await.expect("groups").remove(0);
    assert_eq!((group.in_flight, group.counters.expired), (1, 0), "{group:?}");
    drop(busy);
}
