//! kill -9 of the server under WebSocket load, again and again: nothing that was answered is lost, nothing comes twice, and
//! groups go on where they were.
//!
//! What is claimed needs no clock. A life is the time from one start of the server to its kill; a delivery and an answer belong
//! to the life in which their connection was made.
//! - An event whose PUBLISH was answered OK is in the topic once, as it was sent, with the id and seq of the answer.
//! - In one life a group gets an event at most once: nobody leaves, and leases outlast the test.
//! - An event whose ACK was answered OK never comes again in a later life; nor does one whose ACK, without corr, went before
//!   such an ACK on the same connection.
//! - So what comes again was in flight when the server died, or its ACK was on its way to the disk. Members ack at once: how long
//!   before the kill is measured, and printed.

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
/// Every second one chooses its ids.
const PUBLISHERS: usize = 4;
/// Name, and how often an ACK has a corr.
const GROUPS: [(&str, u64); 2] = [("answered", 1), ("silent", 16)];
const MEMBERS: usize = 2;
const MAX_IN_FLIGHT: usize = 100;
/// The design says 10 ms; a busy machine may hold up the client, the server, or its disk.
const ACK_AGE_MAX: Duration = Duration::from_secs(5);

/// What all tasks know.
struct World {
    address: SocketAddr,
    /// The current life.
    life: AtomicUsize,
    /// When each life ended.
    kills: Mutex<Vec<Instant>>,
    /// No more publishes.
    is_publishing_over: AtomicBool,
    is_over: AtomicBool,
}

impl World {
    /// A connection, and the life that it belongs to; `None` when all is over.
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

/// What /export says of an event.
#[derive(Deserialize)]
struct Exported {
    id: String,
    seq: u64,
    payload: Box<RawValue>,
}

#[test]
fn killed_under_load_it_loses_nothing_and_groups_go_on() {
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

/// On the same folder and port.
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

/// Answers how many publishes were answered.
fn check_export(exported: &[Exported], sent: &[Sent]) -> usize {
    let mut by_payload = HashMap::new();
    for (at, event) in exported.iter().enumerate() {
        assert_eq!(event.seq, at as u64 + 1, "seqs have no gaps");
        let twin = by_payload.insert(event.payload.get(), event);
        assert!(twin.is_none(), "twice: {}", event.payload);
    }
    let mut ok_count = 0;
    for (publisher, sent) in sent.iter().enumerate() {
        for (number, answer) in sent.answers.iter().enumerate() {
            let there = by_payload.remove(payload(publisher, number).as_str());
            let Some((id, seq)) = answer else { continue };
            let there =
                there.unwrap_or_else(|| panic!("lost: publisher {publisher}, event {number}, seq {seq}"));
            assert_eq!((&there.id, there.seq), (id, *seq), "publisher {publisher}, event {number}");
            ok_count += 1;
        }
    }
    assert!(by_payload.is_empty(), "nobody published these: {:?}", by_payload.keys());
    ok_count
}

fn check_group(group: &str, log: &GroupLog, exported: &[Exported]) {
    assert_eq!(log.violations, Vec::<String>::new(), "group {group}");
    for event in exported {
        let history = log.histories.get(&event.seq);
        let history = history.unwrap_or_else(|| panic!("group {group} never got seq {}", event.seq));
        assert_eq!(history.id, event.id, "group {group}, seq {}", event.seq);
        assert_eq!(history.payload.get(), event.payload.get(), "group {group}, seq {}", event.seq);
    }
    assert_eq!(log.histories.len(), exported.len(), "group {group}");
    let millis = |age: Duration| age.as_secs_f64() * 1000.0;
    let (unanswered, silent) = (&log.again.unanswered, &log.again.silent);
    println!(
        "kill: group {group}: {} deliveries; came again: {} whose ACK was in flight (sent {:.1} ms before a kill at most), {} \
         acked without corr ({:.1} ms)",
        log.delivery_count,
        unanswered.count,
        millis(unanswered.oldest),
        silent.count,
        millis(silent.oldest)
    );
    let oldest = unanswered.oldest.max(silent.oldest);
    assert!(oldest <= ACK_AGE_MAX, "an ACK was not written down for {oldest:?}");
}
