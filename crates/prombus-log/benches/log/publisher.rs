//! One publisher, as a session of a server would be one: it keeps a window of events that are not durable yet, and whenever
//! there is room in it, appends what fits in one call.
//!
//! The window is refilled in pieces, so that appends go on while a batch is being synced. Nothing in the loop allocates.

use crate::Failure;
use crate::ids::{IdKind, IdSource};
use crate::recorder::Latencies;
use prombus_log::{Append, Log, NewEvent, Outcomes, Ticket, TopicId};
use std::collections::VecDeque;
use std::time::Instant;

/// The body of every event.
pub const BODY_BYTES: usize = 350;
/// What an event takes in the log: a header comes before its body.
pub const EVENT_BYTES: usize = 64 + BODY_BYTES;

/// The window, and what is appended at once.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    in_flight: usize,
    piece: usize,
}

impl Load {
    /// As many in flight as sixteen sessions would have together; with fewer than sixteen, one event a call.
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
    /// Filled anew for every append.
    events: Vec<NewEvent<'a>>,
    body: &'a [u8],
    outcomes: Outcomes,
    window: VecDeque<Sent>,
    in_flight: usize,
    /// From append to durable, one per event.
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

    /// Appends until `is_done(now, events so far)`, then waits until all of it is durable. Answers how many events it were.
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
        let ts = self.ids.look_at_clock();
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

    /// Makes room for what became durable.
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

/// A body like an event's JSON.
pub fn body() -> Vec<u8> {
    let mut body = br#"{"ts":1700000000000,"topic":"orders","payload":{"order":"A-1002","note":""#.to_vec();
    let words = b"the quick brown fox jumps over the lazy dog ";
    let end = br#""}}"#;
    let filler = words.iter().copied().cycle().take(BODY_BYTES - body.len() - end.len());
    body.extend(filler);
    body.extend_from_slice(end);
    body
}

/// Makes the topics that a publisher writes to.
pub fn make_topics(log: &Log, count: usize) -> Result<Vec<TopicId>, Failure> {
    (0..count).map(|at| Ok(log.ensure_topic(&format!("topic-{at}"))?)).collect()
}

/// Other ids in every round.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}
