//! Publishers that resend with the same id until they are answered, and members of a group that ack every event. All of them
//! connect to any gateway that runs.

use crate::ws_client::{Frame, ack_text, open, publish_text};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::Message;

pub const TOPIC: &str = "orders";
pub const GROUP: &str = "billing";
/// Publishes that a publisher has in flight.
const WINDOW: usize = 200;

/// State shared by all tasks.
pub struct World {
    /// Gateways that can be connected to.
    pub gateways: Mutex<Vec<SocketAddr>>,
    pub start: Instant,
    /// The answered seqs, by number of the publish.
    pub answered: Mutex<BTreeMap<u64, u64>>,
    pub answered_count: AtomicU64,
    /// The time of the last answer in milliseconds since the start, and the longest pause since the last reset.
    last_answer_ms: AtomicU64,
    pub longest_pause_ms: AtomicU64,
    pub deliveries: Mutex<Vec<Held>>,
    pub settled: Mutex<std::collections::BTreeSet<u64>>,
    pub is_over: AtomicBool,
    pub violations: Mutex<Vec<String>>,
    pub close_codes: Mutex<Vec<Option<u16>>>,
}

/// The time during which a member had an event: until it acked the event or its connection ended.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub seq: u64,
    pub member: usize,
    pub from: Instant,
    pub to: Instant,
}

impl World {
    pub fn new(gateways: Vec<SocketAddr>) -> Arc<Self> {
        Arc::new(Self {
            gateways: Mutex::new(gateways),
            start: Instant::now(),
            answered: Mutex::default(),
            answered_count: AtomicU64::new(0),
            last_answer_ms: AtomicU64::new(0),
            longest_pause_ms: AtomicU64::new(0),
            deliveries: Mutex::default(),
            settled: Mutex::default(),
            is_over: AtomicBool::new(false),
            violations: Mutex::default(),
            close_codes: Mutex::default(),
        })
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Resets the longest pause to zero.
    pub fn reset_pause(&self) {
        self.last_answer_ms.store(self.now_ms(), Ordering::SeqCst);
        self.longest_pause_ms.store(0, Ordering::SeqCst);
    }

    fn note_answer(&self, number: u64, seq: u64) {
        let now = self.now_ms();
        let before = self.last_answer_ms.swap(now, Ordering::SeqCst);
        self.longest_pause_ms.fetch_max(now.saturating_sub(before), Ordering::SeqCst);
        if let Some(other) = self.answered.lock().unwrap().insert(number, seq)
            && other != seq
        {
            self.violations.lock().unwrap().push(format!("publish {number} is seq {other} and {seq}"));
        }
        self.answered_count.fetch_add(1, Ordering::SeqCst);
    }

    pub async fn wait_for_answers(&self, count: u64) {
        let started = Instant::now();
        while self.answered_count.load(Ordering::SeqCst) < count {
            assert!(started.elapsed() < Duration::from_secs(120), "publishes are not answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Connects to a gateway, a different one for each attempt.
    async fn connect(&self, attempt: usize) -> Option<crate::ws_client::Socket> {
        let address = {
            let gateways = self.gateways.lock().unwrap();
            gateways[attempt % gateways.len()]
        };
        let opened = tokio::time::timeout(Duration::from_secs(15), open(address)).await;
        match opened {
            Ok(Ok(socket)) => Some(socket),
            _ => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                None
            }
        }
    }

    /// Checks that no event was with two members at the same time. Returns the number of redeliveries.
    pub fn check_one_member_at_a_time(&self) -> usize {
        let mut by_seq: BTreeMap<u64, Vec<Held>> = BTreeMap::new();
        for held in self.deliveries.lock().unwrap().iter() {
            by_seq.entry(held.seq).or_default().push(*held);
        }
        let mut redeliveries = 0;
        for (seq, mut held) in by_seq {
            held.sort_by_key(|it| it.from);
            redeliveries += held.len() - 1;
            for pair in held.windows(2) {
                assert!(
                    pair[1].from >= pair[0].to || pair[0].member == pair[1].member,
                    "event {seq} was with members {} and {} at the same time",
                    pair[0].member,
                    pair[1].member
                );
            }
        }
        redeliveries
    }
}

/// The id of a publish, derived from its number, so that a resent publish has the same id.
fn id_of(number: u64) -> String {
    format!("{:08x}-0000-4000-8000-{number:012x}", 0xabcd_u32)
}

/// Publishes the numbers until all are answered.
pub async fn publisher(world: Arc<World>, index: usize, numbers: std::ops::Range<u64>) {
    let mut waiting: Vec<u64> = numbers.rev().collect();
    let mut attempt = index;
    while !waiting.is_empty() && !world.is_over.load(Ordering::SeqCst) {
        attempt += 1;
        let Some(mut socket) = world.connect(attempt).await else { continue };
        let mut in_flight: BTreeMap<u64, ()> = BTreeMap::new();
        loop {
            let is_over = world.is_over.load(Ordering::SeqCst);
            while !is_over
                && in_flight.len() < WINDOW
                && let Some(number) = waiting.pop()
            {
                in_flight.insert(number, ());
                let text = publish_text(TOPIC, number, Some(&id_of(number)), &number.to_string());
                if socket.feed(Message::text(text)).await.is_err() {
                    break;
                }
            }
            if in_flight.is_empty() || socket.flush().await.is_err() {
                break;
            }
            match tokio::time::timeout(Duration::from_secs(30), socket.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => {
                    let frame = Frame::parse(&text);
                    let Some(number) = frame.corr else { continue };
                    in_flight.remove(&number);
                    if frame.is_ok() {
                        world.note_answer(number, frame.seq);
                    } else {
                        waiting.push(number);
                    }
                }
                Ok(Some(Ok(Message::Close(close)))) => {
                    world.close_codes.lock().unwrap().push(close.map(|it| it.code.into()));
                    break;
                }
                Ok(Some(Ok(_))) => {}
                _ => break,
            }
        }
        waiting.extend(in_flight.into_keys());
    }
}

/// Acks every event until the test is over.
pub async fn member(world: Arc<World>, index: usize) {
    let mut attempt = index;
    while !world.is_over.load(Ordering::SeqCst) {
        attempt += 1;
        let Some(mut socket) = world.connect(attempt).await else { continue };
        let subscribe = json!({ "op": "SUBSCRIBE", "topic": TOPIC, "group": GROUP, "corr": 1,
            "opts": { "from": "earliest", "maxInFlight": 200, "name": format!("member-{index}") } });
        if socket.send(Message::text(subscribe.to_string())).await.is_err() {
            continue;
        }
        let mut newest_first_attempt = 0;
        let mut held: Vec<Held> = Vec::new();
        loop {
            let next = tokio::select! {
                next = socket.next() => next,
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    if world.is_over.load(Ordering::SeqCst) { break }
                    continue;
                }
            };
            let text = match next {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(close))) => {
                    world.close_codes.lock().unwrap().push(close.map(|it| it.code.into()));
                    break;
                }
                Some(Ok(_)) => continue,
                _ => break,
            };
            let from = Instant::now();
            let frame = Frame::parse(&text);
            if frame.op == "ERR" {
                break;
            }
            let Some(event) = frame.event else { continue };
            let attempt: u64 =
                serde_json::from_str::<serde_json::Value>(&text).unwrap()["ctx"]["attempt"].as_u64().unwrap();
            if attempt == 1 {
                if event.seq <= newest_first_attempt {
                    let why =
                        format!("member {index} received seq {} after {newest_first_attempt}", event.seq);
                    world.violations.lock().unwrap().push(why);
                }
                newest_first_attempt = event.seq;
            }
            if socket.send(Message::text(ack_text(TOPIC, GROUP, &event.id, None))).await.is_err() {
                held.push(Held { seq: event.seq, member: index, from, to: from });
                break;
            }
            held.push(Held { seq: event.seq, member: index, from, to: Instant::now() });
            world.settled.lock().unwrap().insert(event.seq);
        }
        world.deliveries.lock().unwrap().append(&mut held);
    }
}
