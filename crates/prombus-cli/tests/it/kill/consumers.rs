//! Members that ack every event, and a log of the deliveries of each group.

use super::{MAX_IN_FLIGHT, TOPIC, World};
use crate::ws_client::{Event, Frame, ack_text};
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::{self, Message};

/// The deliveries of a group, and violations of the claims.
#[derive(Default)]
pub(super) struct GroupLog {
    /// By seq.
    pub(super) histories: HashMap<u64, History>,
    pub(super) delivery_count: usize,
    pub(super) redelivered: Redelivered,
    pub(super) violations: Vec<String>,
}

/// Events that were redelivered in a later life, by the state of their ACK in the life before.
#[derive(Default)]
pub(super) struct Redelivered {
    /// The ACK had a corr and no answer yet.
    pub(super) unanswered: Acked,
    /// The ACK had no corr.
    pub(super) silent: Acked,
}

#[derive(Default)]
pub(super) struct Acked {
    pub(super) count: usize,
    /// The longest time from an ACK to the kill.
    pub(super) oldest: Duration,
}

impl Acked {
    fn count(&mut self, killed: Instant, acked: Instant) {
        self.count += 1;
        self.oldest = self.oldest.max(killed.saturating_duration_since(acked));
    }
}

pub(super) struct History {
    pub(super) id: String,
    pub(super) payload: Box<RawValue>,
    /// The life of its last delivery.
    life: usize,
    ack: Ack,
}

#[derive(Clone, Copy)]
enum Ack {
    /// With a corr, and not answered yet.
    Sent(Instant),
    SentSilently(Instant),
    /// Answered, or a later ACK of the same connection was.
    Durable(usize),
}

impl GroupLog {
    /// Records a delivery that is about to be acked.
    fn delivered(&mut self, event: &Event, life: usize, ack: Ack, kills: &[Instant]) {
        self.delivery_count += 1;
        let payload = event.payload.clone();
        let Some(history) = self.histories.get_mut(&event.seq) else {
            let history = History { id: event.id.clone(), payload, life, ack };
            self.histories.insert(event.seq, history);
            return;
        };
        let seq = event.seq;
        if history.id != event.id || history.payload.get() != payload.get() {
            self.violations.push(format!("seq {seq} was redelivered as another event"));
        }
        if life <= history.life {
            self.violations.push(format!("seq {seq} was redelivered in life {life} after {}", history.life));
        }
        match history.ack {
            Ack::Sent(at) => self.redelivered.unanswered.count(kills[history.life], at),
            Ack::SentSilently(at) => self.redelivered.silent.count(kills[history.life], at),
            Ack::Durable(acked) => {
                let what =
                    format!("seq {seq} was redelivered in life {life}; its ACK was durable in life {acked}");
                self.violations.push(what);
            }
        }
        (history.life, history.ack) = (life, ack);
    }

    /// Records that an ACK, or a later one of the same connection, was answered in this life.
    fn acked(&mut self, seq: u64, life: usize) {
        let history = self.histories.get_mut(&seq).expect("an acked event was delivered");
        if history.life > life {
            let what = format!(
                "seq {seq} was redelivered in life {}; its ACK was durable in life {life}",
                history.life
            );
            self.violations.push(what);
        }
        history.ack = Ack::Durable(life);
    }
}

/// Records a delivery. Returns false if its life is over: it then cannot be told from a redelivery of the next life.
fn note(world: &World, log: &Mutex<GroupLog>, event: &Event, life: usize, ack: Ack) -> bool {
    let mut log = log.lock().unwrap();
    let is_current = world.life.load(Ordering::SeqCst) == life;
    if is_current {
        log.delivered(event, life, ack, &world.kills.lock().unwrap());
    }
    is_current
}

/// A member that acks every event; each `corr_every`-th ACK has a corr.
pub(super) async fn consume(
    world: Arc<World>,
    group: &'static str,
    corr_every: u64,
    log: Arc<Mutex<GroupLog>>,
) {
    let opts = json!({
        "from": "earliest", "maxInFlight": MAX_IN_FLIGHT, "maxAttempts": 1000, "ackTimeoutMs": 3_600_000,
    });
    let subscribe = json!({"op": "SUBSCRIBE", "topic": TOPIC, "group": group, "opts": opts}).to_string();
    while let Some((life, mut socket)) = world.connect().await {
        let mut acks: VecDeque<u64> = VecDeque::new();
        let mut ack_count = 0;
        let _: Result<(), tungstenite::Error> = async {
            socket.send(Message::text(subscribe.clone())).await?;
            loop {
                let patience = Duration::from_millis(200);
                let mut next = match tokio::time::timeout(patience, socket.next()).await {
                    Ok(next) => Some(next),
                    Err(_) if world.is_over.load(Ordering::SeqCst) => return Ok(()),
                    Err(_) => continue,
                };
                while let Some(message) = next {
                    if let Message::Text(text) = message.ok_or(tungstenite::Error::ConnectionClosed)?? {
                        let frame = Frame::parse(&text);
                        match (frame.event, frame.corr) {
                            (Some(event), _) => {
                                ack_count += 1;
                                let corr = (ack_count % corr_every == 0).then_some(event.seq);
                                let now = Instant::now();
                                let ack =
                                    if corr.is_some() { Ack::Sent(now) } else { Ack::SentSilently(now) };
                                if !note(&world, &log, &event, life, ack) {
                                    return Err(tungstenite::Error::ConnectionClosed);
                                }
                                acks.push_back(event.seq);
                                let ack = ack_text(TOPIC, group, &event.id, corr);
                                socket.feed(Message::text(ack)).await?;
                            }
                            (None, Some(seq)) => {
                                assert!(frame.op == "OK" && !frame.stale, "{text}");
                                let mut log = log.lock().unwrap();
                                while let Some(acked) = acks.pop_front() {
                                    log.acked(acked, life);
                                    if acked == seq {
                                        break;
                                    }
                                }
                            }
                            (None, None) => assert_eq!(frame.op, "OK", "{text}"),
                        }
                    }
                    next = socket.next().now_or_never();
                }
                socket.flush().await?;
            }
        }
        .await;
    }
}
