//! A publisher that behaves like a session of the server: it keeps a window of events that are not durable yet, and
//! publishes as many as fit into the window in one call.

use crate::Failure;
use crate::publisher::BODY_BYTES;
use crate::recorder::Latencies;
use prombus::{Bus, PublishBatch, PublishOptions, Publishing, Topic};
use std::collections::VecDeque;
use std::time::Instant;

/// A payload for an event of [`BODY_BYTES`], without id and seq.
pub fn payload() -> Vec<u8> {
    let around = r#"{"ts":1700000000000,"topic":"orders","payload":}"#.len();
    let mut payload = br#"{"order":"A-1002","customer":{"id":4711,"vip":true},"lines":[{"sku":"x-1","n":2},{"sku":"y-2","n":1}],"note":""#.to_vec();
    let end = br#""}"#;
    let words = b"the quick brown fox jumps over the lazy dog ";
    let filler = BODY_BYTES - around - payload.len() - end.len();
    payload.extend(words.iter().copied().cycle().take(filler));
    payload.extend_from_slice(end);
    payload
}

/// A publisher with a window.
pub struct BusPublisher {
    bus: Bus,
    topic: Topic,
    payload: Vec<u8>,
    options: PublishOptions,
    in_flight: usize,
    piece: usize,
    window: VecDeque<(Publishing, usize, Instant)>,
    waiting: usize,
    pub latencies: Latencies,
}

impl BusPublisher {
    pub fn new(bus: &Bus, topic: &str, in_flight: usize) -> Result<Self, Failure> {
        Ok(Self {
            bus: bus.clone(),
            topic: Topic::new(topic)?,
            payload: payload(),
            options: PublishOptions::default(),
            in_flight,
            // The same size as the publisher of the log's benchmark uses.
            piece: (in_flight / 16).max(1),
            window: VecDeque::new(),
            waiting: 0,
            latencies: Latencies::new(),
        })
    }

    /// Publishes until `is_done(events so far)`, then waits until all events are durable.
    pub async fn run(&mut self, is_done: impl Fn(Instant, u64) -> bool) -> Result<u64, Failure> {
        let mut published = 0;
        let mut next = self.make_batch()?;
        while !is_done(Instant::now(), published) {
            // Wait for the oldest batches only while the window has no room for the next one.
            while self.in_flight - self.waiting < self.piece {
                self.take_oldest().await?;
            }
            let count = next.len();
            self.window.push_back((self.bus.publish_batch(next), count, Instant::now()));
            self.waiting += count;
            published += count as u64;
            // Build the next batch while the previous one is being written.
            next = self.make_batch()?;
        }
        while !self.window.is_empty() {
            self.take_oldest().await?;
        }
        Ok(published)
    }

    fn make_batch(&self) -> Result<PublishBatch, Failure> {
        let mut batch = self.bus.batch();
        for _ in 0..self.piece {
            batch.push_json(self.topic.clone(), &self.payload, &self.options)?;
        }
        Ok(batch)
    }

    async fn take_oldest(&mut self) -> Result<(), Failure> {
        if let Some((publishing, count, at)) = self.window.pop_front() {
            publishing.await?;
            self.latencies.add(at.elapsed(), count as u64);
            self.waiting -= count;
        }
        Ok(())
    }
}
