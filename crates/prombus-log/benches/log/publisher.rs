//! One publisher, like a session of a server. It keeps a window of events that are not durable yet, and appends as many
//! events as fit in one call whenever the window has room.
//!
//! The window is refilled in pieces, so that appends continue while a batch is being synced. The loop does not allocate.

use crate::Failure;
use crate::ids::{IdKind, IdSource};
use crate::recorder::Latencies;
use prombus_log::{Append, Log, NewEvent, Outcomes, Ticket, TopicId};
use std::collections::VecDeque;
use std::time::Instant;

/// The body of every event.
pub const BODY_BYTES: usize = 350;
/// The size of an event in the log: a header and the body.
pub const EVENT_BYTES: usize = 64 + BODY_BYTES;

/// The size of the window, and the number of events per append.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    in_flight: usize,
    piece: usize,
}

impl Load {
    /// Divides the events in flight into sixteen appends, as if there were sixteen sessions. With fewer than sixteen in
    /// flight, an append has one event.
    pub fn new(in_flight: usize) -> Self {
        Self { in_flight, piece: (in_flight / 16).max(1) }
    }
}

struct Sent {
    ticket: Ticket,
    events: usize,
    at: Instant,
}

/// Appends events to topics in turn.
pub struct Publisher<'a> {
    log: &'a Log,
    topics: &'a [TopicId],
    next_topic: usize,
    ids: IdSource,
    /// Cleared and filled for every append.
    events: Vec<NewEvent<'a>>,
    body: &'a [u8],
    outcomes: Outcomes,
    window: VecDeque<Sent>,
    in_flight: usize,
    /// The time from append to durable, one value per event.
    pub latencies: Latencies,
}

impl<'a> Publisher<'a> {
    pub fn new(log: &'a Log, topics: &'a [TopicId], body: &'a [u8], ids: IdKind) -> Self {
        Self {
            log,
            topics,
            next_topic: 0,
            ids: IdSource::new(ids, seed()),
            events: Vec::with_capacity(1_024),
            body,
            outcomes: Outcomes::default(),
            window: VecDeque::with_capacity(4_096),
            in_flight: 0,
            latencies: Latencies::new(),
        }
    }

    /// Appends until `is_done(now, events so far)` returns true, and then waits until all events are durable. Returns their
    /// number.
    pub fn run(&mut self, load: Load, is_done: impl Fn(Instant, u64) -> bool) -> Result<u64, Failure> {
        let mut appended = 0;
        loop {
            let now = Instant::now();
            if is_done(now, appended) {
                break;
            }
            self.settle(now);
            let free = load.in_flight - self.in_flight;
            if free == 0 {
                self.wait_for_oldest()?;
            } else {
                appended += self.append(free.min(load.piece), now)?;
            }
        }
        while !self.window.is_empty() {
            self.wait_for_oldest()?;
            self.settle(Instant::now());
        }
        Ok(appended)
    }

    fn append(&mut self, count: usize, now: Instant) -> Result<u64, Failure> {
        let ts = self.ids.read_clock();
        self.events.clear();
        for _ in 0..count {
            let topic = self.topics[self.next_topic];
            self.next_topic = (self.next_topic + 1) % self.topics.len();
            let id = self.ids.next();
            self.events.push(NewEvent { topic, id, ts, key: None, body: self.body, tombstone: false });
        }
        let append = Append { events: &self.events, ..Append::default() };
        let ticket = self.log.append(&append, &mut self.outcomes)?;
        self.window.push_back(Sent { ticket, events: count, at: now });
        self.in_flight += count;
        Ok(count as u64)
    }

    /// Removes durable events from the window.
    fn settle(&mut self, now: Instant) {
        let durable = self.log.durable_batch();
        while let Some(sent) = self.window.front().filter(|sent| sent.ticket.batch() <= durable) {
            self.in_flight -= sent.events;
            self.latencies.add(now - sent.at, sent.events as u64);
            self.window.pop_front();
        }
    }

    fn wait_for_oldest(&self) -> Result<(), Failure> {
        if let Some(sent) = self.window.front() {
            self.log.wait(sent.ticket)?;
        }
        Ok(())
    }
}

/// A body that resembles the JSON of an event.
pub fn body() -> Vec<u8> {
    let mut body = br#"{"ts":1700000000000,"topic":"orders","payload":{"order":"A-1002","note":""#.to_vec();
    let words = b"the quick brown fox jumps over the lazy dog ";
    let end = br#""}}"#;
    let filler = words.iter().copied().cycle().take(BODY_BYTES - body.len() - end.len());
    body.extend(filler);
    body.extend_from_slice(end);
    body
}

/// Creates the topics of a publisher.
pub fn make_topics(log: &Log, count: usize) -> Result<Vec<TopicId>, Failure> {
    (0..count).map(|at| Ok(log.ensure_topic(&format!("topic-{at}"))?)).collect()
}

/// A seed that gives different ids in every round.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}
