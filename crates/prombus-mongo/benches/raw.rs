//! Compares the engine with the bare driver in one run: publishing with `insertMany`, catch-up reads with `find`.
//!
//! `cargo bench -p prombus-mongo --features server-tests` starts its own server; see `tests/mongodb/install`. It prints the
//! median of three rounds. `PROMBUS_BENCH_EVENTS` sets the number of events, `PROMBUS_BENCH_SET=1` uses a replica set.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[allow(dead_code)]
#[path = "../tests/it/servers.rs"]
mod servers;

use futures_util::StreamExt as _;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::options::{Acknowledgment, WriteConcern};
use mongodb::{Client, Collection};
use prombus::engine::{SharedStore, Takeover};
use prombus::{Bus, PublishOptions, PullLimit, SystemClock, Topic, Uuid};
use prombus_mongo::{MongoOptions, MongoStore};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 3;
/// Events per publish, and documents per `insertMany`.
const BATCH: usize = 1_000;
/// Publishes in flight at a time.
const IN_FLIGHT: usize = 8;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run());
}

fn event_count() -> usize {
    std::env::var("PROMBUS_BENCH_EVENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(200_000)
}

async fn run() {
    let url = if std::env::var("PROMBUS_BENCH_SET").is_ok() {
        servers::shared_set_url()
    } else {
        servers::shared_url()
    };
    let count = event_count();
    for is_readable in [true, false] {
        println!("{count} events of about 110 bytes of JSON, readable = {is_readable}");
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            rounds.push(measure(url, count, is_readable, round).await);
        }
        for (name, pick) in FIGURES {
            let mut values: Vec<f64> = rounds.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            println!(
                "  {name:<44} {:>9.0}/s   ({:.0} to {:.0})",
                values[ROUNDS / 2],
                values[0],
                values[ROUNDS - 1]
            );
        }
        let mut ratios: Vec<[f64; 3]> = rounds
            .iter()
            .map(|it| [it.publish / it.raw_insert, it.publish_ids / it.raw_insert, it.read / it.raw_find])
            .map(|it| it.map(|ratio| ratio * 100.0))
            .collect();
        for (at, name) in
            ["publish / insertMany", "publish with ids / insertMany", "read / find"].iter().enumerate()
        {
            ratios.sort_by(|one, other| one[at].total_cmp(&other[at]));
            println!("  {name:<44} {:>8.0} %", ratios[ROUNDS / 2][at]);
        }
        let bytes: Vec<f64> = rounds.iter().map(|it| it.bytes_per_event).collect();
        println!("  bytes per event on disk, with indexes          {:>8.0}", bytes[0]);
    }
}

struct Round {
    publish: f64,
    publish_ids: f64,
    read: f64,
    consume: f64,
    raw_insert: f64,
    raw_insert_plain: f64,
    raw_find: f64,
    bytes_per_event: f64,
}

type Figure = (&'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 7] = [
    ("publish, server-made ids", |it| it.publish),
    ("publish, publishers' ids", |it| it.publish_ids),
    ("read pages", |it| it.read),
    ("consume with acks", |it| it.consume),
    ("insertMany, clustered", |it| it.raw_insert),
    ("insertMany, plain collection", |it| it.raw_insert_plain),
    ("find, same documents", |it| it.raw_find),
];

async fn measure(url: &str, count: usize, is_readable: bool, round: usize) -> Round {
    let database = servers::fresh_database();
    let options = MongoOptions {
        database: Some(database.clone()),
        readable: is_readable,
        // Without a cache, so that reads go to the server.
        tail_bytes: 1 << 20,
        ..MongoOptions::new(url)
    };
    let store = MongoStore::connect(options).await.unwrap();
    let takeover = Takeover { term: 1, was_released: true };
    let engine = store.lead(takeover, Arc::new(SystemClock::default())).await.unwrap();
    let bus = Bus::builder().over_engine(engine).unwrap();
    let client = Client::with_uri_str(url).await.unwrap();
    let opened = client.database(&database);
    // They alternate, so that neither always has the warmer cache.
    let mut raw = None;
    let publish = rate(count, publish(&bus, "bench", count, false)).await;
    let documents = load(&opened.collection("events"), count).await;
    if round % 2 == 1 {
        raw = Some(raw_inserts(&opened, &documents, count).await);
    }
    let publish_ids = rate(count, self::publish(&bus, "ids", count, true)).await;
    let raw = match raw {
        Some(raw) => raw,
        None => raw_inserts(&opened, &documents, count).await,
    };
    let read = rate(count, read_all(&bus, count)).await;
    let raw_find = rate(count, raw_find(&opened.collection("raw"), count)).await;
    let consume = rate(count, consume(&bus, count)).await;
    let stats = opened.run_command(doc! { "collStats": "events" }).await.unwrap();
    let size = stats.get_i32("totalSize").map(i64::from).or_else(|_| stats.get_i64("totalSize")).unwrap_or(0);
    bus.close().await.unwrap();
    opened.drop().await.unwrap();
    Round {
        publish,
        publish_ids,
        read,
        consume,
        raw_insert: raw.0,
        raw_insert_plain: raw.1,
        raw_find,
        bytes_per_event: size as f64 / (2 * count) as f64,
    }
}

async fn rate(count: usize, work: impl Future<Output = ()>) -> f64 {
    let started = Instant::now();
    work.await;
    count as f64 / started.elapsed().as_secs_f64()
}

fn payload(number: usize) -> serde_json::Value {
    serde_json::json!({ "pid": number, "name": "stt", "host": "dev-machine-07", "cpu_pct": 12.5, "mem_mb": 256, "status": "running" })
}

async fn publish(bus: &Bus, topic: &str, count: usize, has_ids: bool) {
    let batches = (0..count.div_ceil(BATCH)).map(|batch| {
        let first = batch * BATCH;
        let mut publishes = bus.batch();
        for number in first..(first + BATCH).min(count) {
            let id = has_ids.then(|| Uuid::from_u128((number as u128) << 64 | 0x8000_0000_0000_0001));
            publishes.push(topic, &payload(number), &PublishOptions { id, ..Default::default() }).unwrap();
        }
        let publishing = bus.publish_batch(publishes);
        async move { publishing.await.unwrap() }
    });
    futures_util::stream::iter(batches).buffered(IN_FLIGHT).for_each(|_| async {}).await;
}

/// The documents that the engine wrote.
async fn load(events: &Collection<RawDocumentBuf>, count: usize) -> Vec<RawDocumentBuf> {
    let mut found = events.find(doc! { "topic": "bench" }).await.unwrap();
    let mut documents = Vec::with_capacity(count);
    while found.advance().await.unwrap() {
        documents.push(found.current().to_owned());
    }
    assert_eq!(documents.len(), count);
    documents
}

async fn raw_inserts(opened: &mongodb::Database, documents: &[RawDocumentBuf], count: usize) -> (f64, f64) {
    let create = doc! { "create": "raw", "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    opened.run_command(create).await.unwrap();
    let clustered = rate(count, raw_insert(&opened.collection("raw"), documents)).await;
    let plain = rate(count, raw_insert(&opened.collection("plain"), documents)).await;
    (clustered, plain)
}

async fn raw_insert(into: &Collection<RawDocumentBuf>, documents: &[RawDocumentBuf]) {
    for batch in documents.chunks(BATCH) {
        let concern = WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build();
        into.insert_many(batch).ordered(true).write_concern(concern).await.unwrap();
    }
}

async fn raw_find(from: &Collection<RawDocumentBuf>, count: usize) {
    let mut found = from.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    let mut read = 0;
    while found.advance().await.unwrap() {
        read += usize::from(found.current().get_str("payload_json").is_ok());
    }
    assert_eq!(read, count);
}

async fn read_all(bus: &Bus, count: usize) {
    let (topic, mut next, mut read) = (Topic::new("bench").unwrap(), 1, 0);
    while read < count {
        let page = bus.read_from(&topic, next, PullLimit { events: 10_000, bytes: 4 << 20 }).await.unwrap();
        read += page.events.iter().filter(|event| !event.payload().is_empty()).count();
        next = page.next_seq;
    }
}

async fn consume(bus: &Bus, count: usize) {
    let mut deliveries = bus.subscribe("bench", "bench").from_earliest().await.unwrap();
    let mut settled = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(60), deliveries.next()).await.unwrap();
        settled.push(next.unwrap().unwrap().ack());
        if settled.len() >= 1_000 {
            settled.clear();
        }
    }
}
