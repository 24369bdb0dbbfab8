//! Loads on sessions, over the bus and the log.

use crate::{BATCH, Failure, SMALL_TAIL_BYTES, WARM_UP_BATCHES, count_instructions_of};
use prombus::engine::{LogEngine, LogEngineOptions};
use prombus::{Backend, Limits, LocalBackend, ManualClock, Uuid};
use prombus_log::{Options, Step};
use prombus_server::test_util::{Wire, put_masked};
use std::path::Path;
use std::sync::Arc;

const PAYLOAD_BYTES: usize = 256;
const FAN_OUT_GROUPS: usize = 10;
const TOPICS: usize = 10;
/// Acks without a corr are written within this time.
const ACKS_WRITTEN_MS: u64 = 10;

/// A PUBLISH in, an OK out.
pub fn publish(folder: &Path, messages: usize, with_ids: bool) -> Result<usize, Failure> {
    let mut server = Server::open(folder, SMALL_TAIL_BYTES, 1)?;
    let mut publisher = Publisher::new(with_ids);
    let rounds = messages.div_ceil(BATCH);
    for round in 0..WARM_UP_BATCHES + rounds {
        server.wires[0].send(&publisher.frames());
        server.work(round >= WARM_UP_BATCHES);
        let oks = server.wires[0].receive();
        assert!(oks.len() == BATCH && oks.iter().all(|text| is_ok(text)), "every publish gets an OK");
    }
    Ok(rounds * BATCH)
}

/// An ACK in, and an EVENT out, for which the ACK makes room in the window.
pub fn deliver(folder: &Path, messages: usize) -> Result<usize, Failure> {
    let mut server = Server::open(folder, Options::default().tail_bytes, 2)?;
    let mut publisher = Publisher::new(false);
    let rounds = messages.div_ceil(BATCH);
    for _ in 0..1 + WARM_UP_BATCHES + rounds {
        server.wires[0].send(&publisher.frames());
        server.work(false);
        server.wires[0].receive();
    }
    server.wires[1].send(&subscribe("orders.new", "group-0", BATCH));
    server.work(false);
    for round in 0..WARM_UP_BATCHES + rounds {
        let acks = server.acks(1, "group-0");
        server.wires[1].send(&acks);
        server.work(round >= WARM_UP_BATCHES);
    }
    // Check that the last batch was delivered too.
    server.acks(1, "group-0");
    Ok(rounds * BATCH)
}

/// Like [`deliver`], for a group that reads ten topics whose events were committed alternately.
pub fn deliver_topics(folder: &Path, messages: usize) -> Result<usize, Failure> {
    let mut server = Server::open(folder, Options::default().tail_bytes, 2)?;
    let mut publisher = Publisher::new(false);
    let rounds = messages.div_ceil(BATCH);
    for number in 0..(1 + WARM_UP_BATCHES + rounds) * BATCH {
        // One event at a time, so that each has its own commit time.
        server.wires[0].send(&publisher.frame(&format!("orders.{}", number % TOPICS)));
        server.work(false);
        server.wires[0].receive();
    }
    server.subscription = "orders.*";
    server.wires[1].send(&subscribe("orders.*", "group-0", BATCH));
    server.work(false);
    for round in 0..WARM_UP_BATCHES + rounds {
        let acks = server.acks(1, "group-0");
        server.wires[1].send(&acks);
        server.work(round >= WARM_UP_BATCHES);
    }
    server.acks(1, "group-0");
    Ok(rounds * BATCH)
}

/// A PUBLISH in, an EVENT to each of ten groups on connections of their own, and their ACKs in. The result counts deliveries.
pub fn fan_out(folder: &Path, messages: usize) -> Result<usize, Failure> {
    let mut server = Server::open(folder, SMALL_TAIL_BYTES, 1 + FAN_OUT_GROUPS)?;
    let mut publisher = Publisher::new(false);
    let groups: Vec<String> = (0..FAN_OUT_GROUPS).map(|number| format!("group-{number}")).collect();
    for (wire, group) in server.wires[1..].iter_mut().zip(&groups) {
        wire.send(&subscribe("orders.new", group, 2 * BATCH));
    }
    let rounds = messages.div_ceil(BATCH * FAN_OUT_GROUPS);
    for round in 0..WARM_UP_BATCHES + rounds {
        // The acks of the previous round are handled together with the publishes of this one.
        server.wires[0].send(&publisher.frames());
        server.work(round >= WARM_UP_BATCHES);
        server.wires[0].receive();
        for (at, group) in groups.iter().enumerate() {
            let acks = server.acks(1 + at, group);
            server.wires[1 + at].send(&acks);
        }
    }
    Ok(rounds * BATCH * FAN_OUT_GROUPS)
}

/// The connections, and the server that they belong to.
struct Server {
    wires: Vec<Wire>,
    backend: LocalBackend,
    store: Arc<LogEngine>,
    clock: ManualClock,
    /// The subscription of the groups.
    subscription: &'static str,
}

impl Server {
    fn open(folder: &Path, tail_bytes: usize, connections: usize) -> Result<Self, Failure> {
        let clock = ManualClock::new(1_700_000_000_000);
        // Nothing prepares segments during a load, so all of it goes into the first one.
        let first_segment_bytes = Options::default().segment_bytes;
        let log = Options { threads: false, tail_bytes, first_segment_bytes, ..Options::default() };
        let store = LogEngine::open(folder, LogEngineOptions { log }, Arc::new(clock.clone()))?;
        while store.log().step_housekeeping() == Step::Worked {}
        let store = Arc::new(store);
        let as_store = Arc::clone(&store) as Arc<dyn prombus::engine::Engine>;
        let backend = LocalBackend::open_without_timer(as_store, Arc::new(clock.clone()), Limits::default())?;
        let shared: Arc<dyn Backend> = Arc::new(backend.clone());
        let wires = Wire::open(&shared, connections);
        Ok(Self { wires, backend, store, clock, subscription: "orders.new" })
    }

    /// Runs everything that is ready, and then everything that becomes due when no more frames arrive.
    fn work(&mut self, is_counted: bool) {
        let mut work = || {
            self.work_now();
            self.clock.advance_ms(ACKS_WRITTEN_MS);
            self.backend.tick();
            self.work_now();
        };
        if is_counted { count_instructions_of(&mut work) } else { work() }
    }

    fn work_now(&mut self) {
        let mut has_worked = true;
        while has_worked {
            has_worked = false;
            for wire in &mut self.wires {
                has_worked |= wire.turn();
            }
            has_worked |= self.store.log().step_commit() == Step::Worked;
        }
    }

    /// The ACK frames for the batch of received events.
    fn acks(&mut self, wire: usize, group: &str) -> Vec<u8> {
        let mut acks = Vec::new();
        let mut count = 0;
        let topic = self.subscription;
        for text in self.wires[wire].receive() {
            let text = String::from_utf8_lossy(&text);
            let Some((_, rest)) = text.split_once(r#""event":{"id":""#) else { continue };
            let id = &rest[..36];
            let ack = format!(r#"{{"op":"ACK","topic":"{topic}","group":"{group}","id":"{id}"}}"#);
            put_masked(&mut acks, 0x81, ack.as_bytes());
            count += 1;
        }
        assert_eq!(count, BATCH, "one batch is delivered at a time");
        acks
    }
}

/// A client that publishes.
struct Publisher {
    payload: String,
    corr: usize,
    with_ids: bool,
}

impl Publisher {
    fn new(with_ids: bool) -> Self {
        Self { payload: "x".repeat(PAYLOAD_BYTES), corr: 0, with_ids }
    }

    /// The next batch.
    fn frames(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..BATCH {
            bytes.extend(self.frame("orders.new"));
        }
        bytes
    }

    fn frame(&mut self, topic: &str) -> Vec<u8> {
        self.corr += 1;
        let (payload, corr) = (&self.payload, self.corr);
        let options =
            if self.with_ids { format!(r#","opts":{{"id":"{}"}}"#, Uuid::now_v7()) } else { String::new() };
        let frame =
            format!(r#"{{"op":"PUBLISH","topic":"{topic}","payload":"{payload}"{options},"corr":{corr}}}"#);
        let mut bytes = Vec::new();
        put_masked(&mut bytes, 0x81, frame.as_bytes());
        bytes
    }
}

fn subscribe(topic: &str, group: &str, window: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frame = format!(
        r#"{{"op":"SUBSCRIBE","topic":"{topic}","group":"{group}","corr":1,"opts":{{"from":"earliest","maxInFlight":{window},"batchSize":{BATCH}}}}}"#
    );
    put_masked(&mut bytes, 0x81, frame.as_bytes());
    bytes
}

fn is_ok(text: &[u8]) -> bool {
    text.starts_with(br#"{"op":"OK""#)
}
