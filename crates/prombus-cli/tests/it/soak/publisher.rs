//! A publisher with a fixed schedule. The latency of a publish counts from when it was due, even if it was sent late.

use super::{TOPIC, World};
use crate::ws_client::{Frame, open, publish_text};
use futures_util::{SinkExt, StreamExt};
use hdrhistogram::Histogram;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::Message;

pub(super) const PAYLOAD_BYTES: usize = 256;
/// How often the publishes that are due are sent.
const TICK: Duration = Duration::from_millis(1);

pub(super) struct Publishing {
    pub(super) count: u64,
    pub(super) took: Duration,
    pub(super) latency: Latency,
}

/// Latencies in microseconds, from when a publish was due.
pub(super) struct Latency(Histogram<u64>);

impl Latency {
    pub(super) fn new() -> Self {
        Self(Histogram::new(3).unwrap())
    }

    /// Records a publish that was due at `due_us` and completes now.
    pub(super) fn count(&mut self, world: &World, due_us: u64) {
        let now_us = world.began.elapsed().as_micros() as u64;
        self.0.record(now_us.saturating_sub(due_us).max(1)).unwrap();
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        let (median, p99, p999) = (millis(0.5), millis(0.99), millis(0.999));
        write!(into, "p50 {median:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms, max {:.2} ms", millis(1.0))
    }
}

/// `[due_us, number, fill]`, always of the same length.
fn payload(due_us: u64, number: u64) -> String {
    let mut payload = format!("[{due_us},{number},\"");
    let fill = PAYLOAD_BYTES - payload.len() - 2;
    payload.extend(std::iter::repeat_n('x', fill));
    payload.push_str("\"]");
    payload
}

/// When a publish is due.
fn due_us(world: &World, start: Duration, number: u64) -> u64 {
    start.as_micros() as u64 + number * 1_000_000 / world.rate
}

pub(super) async fn publish(world: Arc<World>, seconds: u64) -> Publishing {
    let (mut sender, mut receiver) = open(world.address).await.unwrap().split();
    let count = seconds * world.rate;
    let (start, started) = (world.began.elapsed(), Instant::now());
    let answers = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let mut latency = Latency::new();
            for number in 0..count {
                let text = loop {
                    match receiver.next().await.expect("the publisher is not closed").unwrap() {
                        Message::Text(text) => break text,
                        _ => continue,
                    }
                };
                let answer = Frame::parse(&text);
                assert!(answer.is_ok(), "{text}");
                assert_eq!((answer.corr, answer.seq), (Some(number), number + 1), "OKs arrive in order");
                latency.count(&world, due_us(&world, start, number));
            }
            latency
        })
    };
    let mut number = 0;
    let mut ticks = tokio::time::interval(TICK);
    while number < count {
        ticks.tick().await;
        let now_us = world.began.elapsed().as_micros() as u64;
        while number < count && due_us(&world, start, number) <= now_us {
            let payload = payload(due_us(&world, start, number), number);
            sender.feed(Message::text(publish_text(TOPIC, number, None, &payload))).await.unwrap();
            number += 1;
        }
        sender.flush().await.unwrap();
    }
    let latency = answers.await.unwrap();
    Publishing { count, took: started.elapsed(), latency }
}
