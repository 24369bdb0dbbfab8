//! Tests of many connections: the memory of each, the time for one event to reach many groups, and the limit.
//!
//! `PROMBUS_IDLE_CONNECTIONS=5000 PROMBUS_GROUPS=1000` runs the long form. Each group has its own connection.

use crate::http_client::get_json;
use crate::long_form::{alone, asked, wait_until};
use crate::serving::{Serving, mebibytes, serve};
use crate::support::TempFolder;
use crate::ws_client::{Client, Frame, PATIENCE, Seen, Socket, ack_text, open};
use futures_util::{SinkExt, StreamExt};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, block_in_place};
use tokio_tungstenite::tungstenite::Message;

const TOPIC: &str = "news";
/// Connections that are opened at the same time.
const OPENING: usize = 50;
const ROUNDS: usize = 20;
/// More would be a leak, or a large buffer for each connection.
const IDLE_BYTES_MAX: u64 = 64 * 1024;

/// Raises this process's limit of open files to the maximum, and returns it.
fn descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

async fn open_many(address: SocketAddr, count: usize) -> Vec<Socket> {
    let mut sockets = Vec::new();
    while sockets.len() < count {
        let mut opening = JoinSet::new();
        for _ in 0..OPENING.min(count - sockets.len()) {
            opening.spawn(open(address));
        }
        sockets.extend(opening.join_all().await.into_iter().map(Result::unwrap));
    }
    sockets
}

#[test]
fn connections_are_cheap_and_one_event_reaches_every_group() {
    alone(many_connections());
}

async fn many_connections() {
    let idle_count = asked("PROMBUS_IDLE_CONNECTIONS").unwrap_or(300) as usize;
    let group_count = asked("PROMBUS_GROUPS").unwrap_or(100) as usize;
    let (limit, wanted) = (descriptor_limit(), (idle_count + group_count + 200) as u64);
    assert!(
        limit >= wanted,
        "this test needs {wanted} open files, but only {limit} are allowed: see ulimit -Hn"
    );
    let folder = TempFolder::new();
    let serving = block_in_place(|| Serving::in_folder(&folder, &["--log", "warn"]));
    let address = serving.address();
    let mut publisher = Client::connect(address).await;
    publisher.publish(TOPIC, json!("creates the topic")).await;

    let before = serving.memory().resident_bytes;
    let opened = Instant::now();
    let idle = open_many(address, idle_count).await;
    let took = opened.elapsed();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let after = serving.memory().resident_bytes;
    let each = after.saturating_sub(before) / idle_count as u64;
    println!(
        "connections: {idle_count} idle in {took:?}: server from {:.1} to {:.1} MiB, {:.1} KiB each",
        mebibytes(before),
        mebibytes(after),
        each as f64 / 1024.0
    );
    assert!(each <= IDLE_BYTES_MAX, "{each} bytes for an idle connection");

    let (received, mut arrivals) = mpsc::unbounded_channel();
    let subscribed = Instant::now();
    let mut members = JoinSet::new();
    for (group, socket) in open_many(address, group_count).await.into_iter().enumerate() {
        members.spawn(member(socket, format!("group-{group}"), received.clone()));
    }
    for _ in 0..group_count {
        assert_eq!(arrival(&mut arrivals).await, 0, "each member sends 0 once it is subscribed");
    }
    let with_groups = serving.memory().resident_bytes;
    println!(
        "connections: {group_count} groups, each on its own connection, in {:?}: {:.1} MiB, {:.1} KiB each",
        subscribed.elapsed(),
        mebibytes(with_groups),
        with_groups.saturating_sub(after) as f64 / 1024.0 / group_count as f64
    );

    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let published = Instant::now();
        let seq = publisher.publish(TOPIC, json!({"hello": "everybody"})).await.seq;
        for _ in 0..group_count {
            assert_eq!(arrival(&mut arrivals).await, seq);
        }
        times.push(published.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    times.sort_unstable();
    println!(
        "connections: one event to {group_count} groups, with its own OK: min {:?}, median {:?}, max {:?}",
        times[0],
        times[ROUNDS / 2],
        times[ROUNDS - 1]
    );
    wait_until("all groups are done", PATIENCE, async || {
        let groups = block_in_place(|| get_json(&address.to_string(), "/groups"));
        let groups = groups["groups"].as_array().unwrap();
        assert_eq!(groups.len(), group_count);
        groups.iter().all(|group| group["lag"] == 0)
    })
    .await;
    assert!(members.try_join_next().is_none(), "a member was closed");
    members.abort_all();
    drop(idle);
    wait_until("the server has closed the sockets", PATIENCE, async || serving.socket_count() < 10).await;
}

async fn arrival(arrivals: &mut mpsc::UnboundedReceiver<u64>) -> u64 {
    tokio::time::timeout(PATIENCE, arrivals.recv()).await.expect("in time").expect("they all send")
}

/// Sends 0 to `received` when it is subscribed, then the seq of each event that it receives. It starts after the existing events.
async fn member(mut socket: Socket, group: String, received: mpsc::UnboundedSender<u64>) {
    let subscribe = json!({"op": "SUBSCRIBE", "topic": TOPIC, "group": group, "opts": {"from": "latest"}});
    socket.send(Message::text(subscribe.to_string())).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Text(text) = message else { continue };
        let Some(event) = Frame::parse(&text).event else {
            assert!(Frame::parse(&text).is_ok(), "{text}");
            received.send(0).unwrap();
            continue;
        };
        // The receiver is dropped when the test is over.
        let _ = received.send(event.seq);
        let ack = ack_text(TOPIC, &group, &event.id, None);
        let _ = socket.send(Message::text(ack)).await;
    }
}

#[test]
fn connections_over_the_limit_are_closed_at_once_and_the_others_continue() {
    alone(over_the_limit());
}

async fn over_the_limit() {
    const MOST: usize = 50;
    let folder = TempFolder::new();
    let mut command = serve(&folder, &["--log", "warn"]);
    command.env("PROMBUS_LIMITS_MAX_CONNECTIONS", MOST.to_string());
    let serving = block_in_place(|| Serving::start(command));
    let address = serving.address();
    let mut clients = Vec::new();
    for _ in 0..MOST {
        clients.push(Client::connect(address).await);
    }
    for _ in 0..20 {
        let opening = tokio::time::timeout(Duration::from_secs(5), open(address)).await;
        assert!(opening.expect("at once").is_err(), "a connection over the limit was accepted");
    }
    for client in &mut clients {
        client.publish(TOPIC, json!(1)).await;
    }
    let mut gone = clients.pop().unwrap();
    gone.socket.close(None).await.unwrap();
    assert!(matches!(gone.see().await, Seen::Close(None | Some(1000 | 1005))));
    drop(gone);
    wait_until("another connection is accepted", PATIENCE, async || match open(address).await {
        Ok(socket) => {
            drop(socket);
            true
        }
        Err(_) => false,
    })
    .await;
    for client in &mut clients {
        client.publish(TOPIC, json!(2)).await;
    }
}
