//! Clients of a follower: everything works as on the leader, over WebSocket, HTTP and SSE.

use crate::rig::PATIENCE;
use crate::shared_rig::{Pair, SharedRig, exchange, json_of, read_all, shared_options, status_of};
use prombus::Bus;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_publishes_and_subscribes_through_a_follower() {
    let pair = Pair::start().await;
    let mut publisher = pair.follower.client().await;
    let mut direct = pair.leader.client().await;
    let mut relayed = pair.follower.client().await;
    direct.subscribe("t", "direct", json!({"from": "earliest", "maxInFlight": 1000})).await;
    relayed.subscribe("t", "relayed", json!({"from": "earliest", "maxInFlight": 1000})).await;
    for n in 0..200 {
        assert_eq!(publisher.publish("t", json!(n)).await["seq"], n + 1);
    }
    for n in 0..200 {
        for client in [&mut direct, &mut relayed] {
            assert_eq!(client.event().await["event"]["payload"], n);
        }
    }
    assert_eq!(pair.follower.metric("prombus_relayed_connections_open").await, 2);
    assert_eq!(pair.leader.metric("prombus_relayed_connections_open").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_requests_of_one_connection_go_through_a_follower() {
    let pair = Pair::start().await;
    let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let host = pair.follower.address;
    for n in 0..3 {
        let request = format!("POST /publish/t HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\n{n}");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = vec![0; 4096];
        let count = timeout(PATIENCE, socket.read(&mut answer)).await.expect("in time").expect("an answer");
        assert_eq!(status_of(&String::from_utf8_lossy(&answer[..count])), 200);
    }
    let answer = pair.follower.ask("GET /replay?topic=t").await;
    assert_eq!(status_of(&answer), 200);
    assert_eq!(answer.matches("\"payload\"").count(), 3, "{answer}");
    assert_eq!(status_of(&pair.follower.ask("GET /none").await), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_sent_events_go_through_a_follower() {
    let pair = Pair::start().await;
    let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let host = pair.follower.address;
    let request = format!("GET /subscribe/t?from=earliest HTTP/1.1\r\nHost: {host}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut seen = String::new();
    for n in 0..5 {
        pair.bus.publish("t", &format!("event {n}")).await.expect("published");
        while !seen.contains(&format!("event {n}")) {
            let mut piece = vec![0; 4096];
            let count = timeout(PATIENCE, socket.read(&mut piece)).await.expect("in time").expect("bytes");
            assert!(count > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_sees_the_address_of_the_client() {
    let pair = Pair::start().await;
    let mut client = pair.follower.client().await;
    let tokio_tungstenite::MaybeTlsStream::Plain(socket) = client.socket.get_ref() else { panic!("no TLS") };
    let own = socket.local_addr().expect("an address").to_string();
    client.subscribe("t", "g", json!({})).await;
    let group = json_of(&pair.leader.ask("GET /groups/t/g").await).to_string();
    assert!(group.contains(&format!("ws {own}")), "{own} is not in {group}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_and_large_messages_are_relayed() {
    let pair = Pair::start().await;
    let large = "x".repeat(900_000);
    let mut client = pair.follower.client().await;
    client.subscribe("t", "g", json!({"from": "earliest"})).await;
    client.publish("t", json!(large)).await;
    assert_eq!(client.event().await["event"]["payload"], large.as_str());
    let lines: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    let answer = pair
        .follower
        .ask(&format!("POST /publish/many\nContent-Type: application/x-ndjson\n\n{lines}"))
        .await;
    assert_eq!(status_of(&answer), 200, "{answer}");
    let export = pair.follower.ask("GET /export?topic=many").await;
    assert_eq!(export.matches("\"topic\":\"many\"").count(), 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_shut_down_its_side_after_the_request() {
    let pair = Pair::start().await;
    let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let host = pair.follower.address;
    let request = format!("POST /publish/t HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\n\r\n1");
    socket.write_all(request.as_bytes()).await.expect("sent");
    socket.shutdown().await.expect("half closed");
    let answer = read_all(&mut socket).await;
    assert_eq!(status_of(&answer), 200, "{answer}");
    assert_eq!(pair.bus.topics().await.expect("topics")[0].last_seq, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_a_connection_waits_and_then_gets_503() {
    let follower = SharedRig::start(shared_options()).await;
    let begun = Instant::now();
    let answer = follower.ask("POST /publish/t\n\n1").await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(status_of(&answer), 503);
    assert_eq!(json_of(&answer)["code"], "unavailable");
    let head = answer.to_lowercase();
    assert!(head.contains("\r\nretry-after: ") && head.contains("\r\nconnection: close"), "{answer}");
    // An unreachable leader has the same effect.
    let mut gone = SharedRig::start(shared_options()).await;
    gone.stop().await;
    follower.follow(Some(gone.endpoint(1)));
    let answer = follower.ask("POST /publish/t\n\n1").await;
    assert_eq!((status_of(&answer), &json_of(&answer)["code"]), (503, &json!("unavailable")));
    assert!(answer.contains(&gone.address.to_string()), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_connection_is_served_by_a_new_leader() {
    let mut patient = shared_options();
    patient.engine_wait = PATIENCE;
    let bus = Bus::memory();
    let (leader, follower) = (SharedRig::start(patient.clone()).await, SharedRig::start(patient).await);
    // The follower knows the address before the leader has taken over.
    follower.follow(Some(leader.endpoint(1)));
    let (answer, ()) = tokio::join!(follower.ask("POST /publish/t\n\n1"), async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        leader.lead(&bus, 1);
    });
    assert_eq!(status_of(&answer), 200, "{answer}");
    follower.follow(None);
    let (answer, ()) = tokio::join!(follower.ask("POST /publish/t\n\n1"), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        follower.lead(&bus, 2);
    });
    assert_eq!(status_of(&answer), 200, "the follower has become the leader: {answer}");
    assert_eq!(bus.topics().await.expect("topics")[0].last_seq, 2, "each was published once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_ends_the_connection() {
    let mut hasty = shared_options();
    hasty.connections.head_timeout = Duration::from_millis(200);
    let pair = Pair::with(shared_options(), hasty).await;
    for start in ["", "GET /topics HTTP/1.1\r\nHost: ", "\r\n"] {
        let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
        socket.write_all(start.as_bytes()).await.expect("sent");
        let begun = Instant::now();
        assert_eq!(read_all(&mut socket).await, "");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_over_the_limit_and_other_protocols_are_refused_by_the_follower() {
    let pair = Pair::start().await;
    let large = format!("GET /topics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    assert_eq!(status_of(&exchange(pair.follower.address, large.as_bytes()).await), 431);
    let headers: String = (0..101).map(|n| format!("X-{n}: 1\r\n")).collect();
    let many = format!("GET /topics HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    assert_eq!(status_of(&exchange(pair.follower.address, many.as_bytes()).await), 431);
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let answer = exchange(pair.follower.address, http2).await;
    assert!(answer.is_empty() || status_of(&answer) == 400, "{answer}");
    assert_eq!(pair.follower.metric("prombus_relayed_connections_total").await, 0);
    // The limit is the same as on the leader.
    let allowed = format!(
        "GET /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    assert_eq!(status_of(&exchange(pair.follower.address, allowed.as_bytes()).await), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_enforces_its_connection_limit() {
    let mut small = shared_options();
    small.connections.max_connections = 2;
    let pair = Pair::with(shared_options(), small).await;
    let mut kept = [pair.follower.client().await, pair.follower.client().await];
    let mut third = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let begun = Instant::now();
    assert_eq!(read_all(&mut third).await, "");
    assert!(begun.elapsed() < Duration::from_secs(5), "not closed at once: {:?}", begun.elapsed());
    for client in &mut kept {
        client.publish("t", json!(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pauses_reading_loses_nothing() {
    let pair = Pair::start().await;
    let mut batch = pair.bus.batch();
    for n in 0..40_000 {
        let payload = format!("{n} {}", "x".repeat(200));
        batch.push("t", &payload, &prombus::PublishOptions::default()).expect("an event");
    }
    pair.bus.publish_batch(batch).await.expect("published");
    let mut socket = TcpStream::connect(pair.follower.address).await.expect("it connects");
    let request = format!(
        "GET /export?topic=t HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        pair.follower.address
    );
    socket.write_all(request.as_bytes()).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let answer = read_all(&mut socket).await;
    assert_eq!(answer.matches("\"topic\":\"t\"").count(), 40_000);
}
