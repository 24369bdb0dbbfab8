//! Test of repeated `kill -9` of the server under WebSocket load: no acknowledged event is lost, none is stored twice, and groups
//! continue where they were.
//!
//! A life is the time from a start of the server to its kill. A delivery or response belongs to the life in which its connection
//! was opened. The claims need no clock:
//! - An event whose PUBLISH was answered OK is in the topic once, unchanged, with the id and seq of the response.
//! - In one life a group receives an event at most once: no member leaves, and leases outlast the test.
//! - An event whose ACK was answered OK is not delivered in a later life. Neither is an event whose ACK without corr was sent
//!   before such an ACK on the same connection.
//! - So a redelivered event was in flight when the server was killed, or its ACK was not durable yet. Members ack at once, and the
//!   time from such an ACK to the kill is measured and printed.

mod consumers;
mod publishers;

use crate::http_client::{get, get_json};
use crate::long_form::{Random, alone, asked, wait_until};
use crate::serving::{Serving, serve};
use crate::support::{TempFolder, run};
use crate::ws_client::{Socket, open};
use consumers::{GroupLog, consume};
use publishers::{Sent, payload, publish};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const TOPIC: &str = "orders";
/// Half of them choose the ids of their events.
const PUBLISHERS: usize = 4;
/// The name of a group, and `n`: every n-th ACK of its members has a corr.
const GROUPS: [(&str, u64); 2] = [("answered", 1), ("silent", 16)];
const MEMBERS: usize = 2;
const MAX_IN_FLIGHT: usize = 100;
/// The server promises 10 ms; a busy machine may delay the client, the server or the disk.
const ACK_AGE_MAX: Duration = Duration::from_secs(5);

/// State shared by all tasks.
struct World {
    address: SocketAddr,
    /// The number of the current life.
    life: AtomicUsize,
    /// When each life ended.
    kills: Mutex<Vec<Instant>>,
    /// Publishers start no further publishes.
    is_publishing_over: AtomicBool,
    is_over: AtomicBool,
}

impl World {
    /// Opens a connection and returns the life that it belongs to; `None` when the test is over.
    async fn connect(&self) -> Option<(usize, Socket)> {
        while !self.is_over.load(Ordering::SeqCst) {
            let life = self.life.load(Ordering::SeqCst);
            if let Ok(socket) = open(self.address).await
                && self.life.load(Ordering::SeqCst) == life
            {
                return Some((life, socket));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }
}

/// An event in the response of `/export`.
#[derive(Deserialize)]
struct Exported {
    id: String,
    seq: u64,
    payload: Box<RawValue>,
}

#[test]
fn kills_under_load_lose_nothing_and_groups_continue() {
    alone(kill_under_load());
}

async fn kill_under_load() {
    let kills = asked("PROMBUS_KILLS").unwrap_or(3);
    let mut random = Random::from_environment("kill");
    let folder = TempFolder::new();
    let mut serving = block_in_place(|| Serving::start(serve(&folder, &[])));
    let address = serving.address();
    let world = Arc::new(World {
        address,
        life: AtomicUsize::new(0),
        kills: Mutex::default(),
        is_publishing_over: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    let logs: Vec<Arc<Mutex<GroupLog>>> = GROUPS.iter().map(|_| Arc::default()).collect();
    let mut consumers = Vec::new();
    for (log, &(group, corr_every)) in logs.iter().zip(&GROUPS) {
        for _ in 0..MEMBERS {
            consumers.push(tokio::spawn(consume(Arc::clone(&world), group, corr_every, Arc::clone(log))));
        }
    }
    let publishers: Vec<_> =
        (0..PUBLISHERS).map(|number| tokio::spawn(publish(Arc::clone(&world), number))).collect();

    let (mut start_longest, began) = (Duration::ZERO, Instant::now());
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(200 + random.below(1_500))).await;
        world.kills.lock().unwrap().push(Instant::now());
        block_in_place(|| serving.kill());
        world.life.fetch_add(1, Ordering::SeqCst);
        let started = Instant::now();
        serving = block_in_place(|| restart(&folder, address));
        start_longest = start_longest.max(started.elapsed());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.is_publishing_over.store(true, Ordering::SeqCst);
    let mut sent = Vec::new();
    for publisher in publishers {
        sent.push(publisher.await.unwrap());
    }
    let load_seconds = began.elapsed().as_secs_f64();
    wait_until("both groups are done", Duration::from_secs(120), async || {
        let done = GROUPS.map(|(group, _)| {
            let of = block_in_place(|| get_json(&address.to_string(), &format!("/groups/{TOPIC}/{group}")));
            of["lag"] == 0 && of["in_flight"] == 0
        });
        done == [true, true]
    })
    .await;
    world.is_over.store(true, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.unwrap();
    }

    let exported = block_in_place(|| export(&address.to_string()));
    let ok_count = check_export(&exported, &sent);
    let duplicates: usize = sent.iter().map(|it| it.duplicates).sum();
    println!(
        "kill: {kills} kills in {load_seconds:.1} s; {ok_count} publishes answered OK ({duplicates} as duplicates, sent \
         again after a kill), {} events in the topic: none lost, none twice; longest start {start_longest:?}",
        exported.len()
    );
    for (log, (group, _)) in logs.iter().zip(&GROUPS) {
        check_group(group, &log.lock().unwrap(), &exported);
    }
    block_in_place(|| serving.stop());
    let ran = run(&["verify", "--data", folder.path().join("data").to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Starts a server with the same folder and port.
fn restart(folder: &TempFolder, address: SocketAddr) -> Serving {
    let data = folder.path().join("data");
    let listen = address.to_string();
    let arguments = ["serve", "--data", data.to_str().unwrap(), "--listen", &listen];
    Serving::start(crate::support::prombus(&arguments))
}

fn export(address: &str) -> Vec<Exported> {
    let answer = get(address, &format!("/export?topic={TOPIC}"), "");
    assert_eq!(answer.status, 200);
    let lines = BufReader::new(answer.body).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

/// Checks the export against the answers of the publishers. Returns how many publishes were answered.
fn check_export(exported: &[Exported], sent: &[Sent]) -> usize {
    let mut by_payload = HashMap::new();
    for (at, event) in exported.iter().enumerate() {
        assert_eq!(event.seq, at as u64 + 1, "seqs have no gaps");
        let twin = by_payload.insert(event.payload.get(), event);
        assert!(twin.is_none(), "stored twice: {}", event.payload);
    }
    let mut ok_count = 0;
    for (publisher, sent) in sent.iter().enumerate() {
        for (number, answer) in sent.answers.iter().enumerate() {
            let stored = by_payload.remove(payload(publisher, number).as_str());
            let Some((id, seq)) = answer else { continue };
            let stored =
                stored.unwrap_or_else(|| panic!("lost: publisher {publisher}, event {number}, seq {seq}"));
            assert_eq!((&stored.id, stored.seq), (id, *seq), "publisher {publisher}, event {number}");
            ok_count += 1;
        }
    }
    assert!(by_payload.is_empty(), "these were never published: {:?}", by_payload.keys());
    ok_count
}

fn check_group(group: &str, log: &GroupLog, exported: &[Exported]) {
    assert_eq!(log.violations, Vec::<String>::new(), "group {group}");
    for event in exported {
        let history = log.histories.get(&event.seq);
        let history = history.unwrap_or_else(|| panic!("group {group} never received seq {}", event.seq));
        assert_eq!(history.id, event.id, "group {group}, seq {}", event.seq);
        assert_eq!(history.payload.get(), event.payload.get(), "group {group}, seq {}", event.seq);
    }
    assert_eq!(log.histories.len(), exported.len(), "group {group}");
    let millis = |age: Duration| age.as_secs_f64() * 1000.0;
    let (unanswered, silent) = (&log.redelivered.unanswered, &log.redelivered.silent);
    println!(
        "kill: group {group}: {} deliveries; redelivered: {} whose ACK was unanswered (sent at most {:.1} ms before a kill), {} \
         acked without corr ({:.1} ms)",
        log.delivery_count,
        unanswered.count,
        millis(unanswered.oldest),
        silent.count,
        millis(silent.oldest)
    );
    let oldest = unanswered.oldest.max(silent.oldest);
    assert!(oldest <= ACK_AGE_MAX, "an ACK was not durable after {oldest:?}");
}
