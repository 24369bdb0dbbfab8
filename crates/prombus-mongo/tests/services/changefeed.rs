//! Changefeeds: the changes of a collection become events.

use crate::child::{Child, open_bus, say};
use crate::servers::{Mongod, ReplicaSet, SHORT_OPLOG, admin, free_port, open_database, temporary_folder};
use crate::setup::{all, database, payloads, until};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use prombus::outbox::{OutboxPublisher, OutboxRecord, PublishFailure};
use prombus::{BoxFuture, Bus, Published};
use prombus_mongo::{Changefeed, ChangefeedError, ChangefeedOptions, FullDocument, mongodb};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

async fn parsed(bus: &Bus, topic: &str) -> Vec<Value> {
    payloads(bus, topic).await.iter().map(|payload| serde_json::from_str(payload).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_becomes_an_event_even_while_the_feed_is_stopped() {
    let (database, _drop) = database().await;
    let users = database.collection::<Document>("users");
    users.insert_one(doc! { "_id": "old", "n": 0 }).await.unwrap();
    let bus = Bus::memory();
    let options = ChangefeedOptions::collection("users").topic("users.changes");
    let open = || Changefeed::open(&database, Arc::new(bus.clone()), options.clone());
    let feed = open().await.unwrap().spawn();
    users.insert_one(doc! { "_id": "ann", "n": 1 }).await.unwrap();
    users.update_one(doc! { "_id": "ann" }, doc! { "$set": { "n": 2 } }).await.unwrap();
    until("two events", || async { feed.figures().published == 2 }).await;
    feed.stop().await.unwrap();
    // These changes happen while the feed is stopped.
    users.replace_one(doc! { "_id": "ann" }, doc! { "m": 3 }).await.unwrap();
    users.delete_one(doc! { "_id": "ann" }).await.unwrap();
    let feed = open().await.unwrap().spawn();
    until("the other two", || async { parsed(&bus, "users.changes").await.len() == 4 }).await;
    assert!(
        feed.to_prometheus()
            .contains("prombus_mongo_changefeed_published_total{feed=\"users::users.changes\"} 2")
    );
    feed.stop().await.unwrap();
    let events = parsed(&bus, "users.changes").await;
    let ops: Vec<&str> = events.iter().map(|it| it["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["insert", "update", "replace", "delete"]);
    assert_eq!(events[0]["document"], serde_json::json!({ "_id": "ann", "n": 1 }));
    assert_eq!(events[1]["update"]["updatedFields"], serde_json::json!({ "n": 2 }));
    assert_eq!(events[3]["_id"], "ann");
}

/// A bus that reports each call, and waits for a permit after it has published.
struct SlowBus {
    bus: Bus,
    calls: Semaphore,
    permits: Semaphore,
}

impl OutboxPublisher for SlowBus {
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<Published, PublishFailure>>> {
        Box::pin(async move {
            let results = OutboxPublisher::publish(&self.bus, records).await;
            self.calls.add_permits(1);
            self.permits.acquire().await.unwrap().forget();
            results
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_is_stopped_finishes_its_batch_and_stores_its_position() {
    let (database, _drop) = database().await;
    let users = database.collection::<Document>("users");
    database.create_collection("users").await.unwrap();
    let slow = Arc::new(SlowBus { bus: Bus::memory(), calls: Semaphore::new(0), permits: Semaphore::new(0) });
    let options = ChangefeedOptions::collection("users").topic("changes");
    let feed = Changefeed::open(&database, Arc::clone(&slow) as Arc<_>, options.clone()).await.unwrap();
    let feed = feed.spawn();
    users.insert_one(doc! { "_id": 1 }).await.unwrap();
    slow.calls.acquire().await.unwrap().forget();
    let mut stopping = Box::pin(feed.stop());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut stopping).await;
    assert!(early.is_err(), "it stopped in the middle of a batch");
    slow.permits.add_permits(100);
    stopping.await.unwrap();
    // The position is after the first change, so the next start does not publish it again.
    users.insert_one(doc! { "_id": 2 }).await.unwrap();
    let feed = Changefeed::open(&database, Arc::clone(&slow) as Arc<_>, options).await.unwrap().spawn();
    until("the second change", || async { feed.figures().published == 1 }).await;
    assert_eq!(feed.figures().duplicates, 0);
    feed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_can_be_filtered_mapped_and_seeded() {
    let (database, _drop) = database().await;
    let users = database.collection::<Document>("users");
    users.insert_many([doc! { "_id": 1, "name": "a" }, doc! { "_id": 2, "name": "b" }]).await.unwrap();
    let bus = Bus::memory();
    let options = ChangefeedOptions {
        full_document: FullDocument::No,
        filter: vec![doc! { "$match": { "operationType": { "$ne": "delete" } } }],
        ..ChangefeedOptions::collection("users").topic("names")
    };
    let feed = Changefeed::open(&database, Arc::new(bus.clone()), options.reseed()).await.unwrap();
    let feed = feed.map(|change, record| {
        let name = change.document.as_ref()?.get_str("name").ok()?;
        let payload = serde_json::value::to_raw_value(name).ok()?;
        Some(prombus::outbox::OutboxRecord { payload, ..record })
    });
    let feed = feed.spawn();
    until("the seed", || async { feed.figures().seeded == 2 }).await;
    users.delete_one(doc! { "_id": 1 }).await.unwrap();
    users.update_one(doc! { "_id": 2 }, doc! { "$set": { "name": "c" } }).await.unwrap();
    users.insert_one(doc! { "_id": 3, "name": "d" }).await.unwrap();
    until("three events", || async { payloads(&bus, "names").await.len() == 3 }).await;
    assert_eq!(payloads(&bus, "names").await, ["\"a\"", "\"b\"", "\"d\""]);
    feed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_or_renamed_collection_is_an_error_that_says_what_to_do() {
    let (database, _drop) = database().await;
    for rename in [false, true] {
        let name = if rename { "renamed" } else { "dropped" };
        let users = database.collection::<Document>(name);
        users.insert_one(doc! {}).await.unwrap();
        let bus = Bus::memory();
        let options = ChangefeedOptions::collection(name).topic("changes");
        let feed = Changefeed::open(&database, Arc::new(bus.clone()), options).await.unwrap().spawn();
        users.insert_one(doc! { "_id": "last" }).await.unwrap();
        if rename {
            let from = format!("{}.{name}", database.name());
            let to = format!("{}.other", database.name());
            let rename = doc! { "renameCollection": from, "to": to };
            database.client().database("admin").run_command(rename).await.unwrap();
        } else {
            users.drop().await.unwrap();
        }
        until("it ends", || async { feed.is_finished() }).await;
        let error = feed.stop().await.unwrap_err();
        assert!(matches!(error, ChangefeedError::Invalidated { .. }), "{error}");
        assert!(error.to_string().contains("reseed") && error.to_string().contains(name), "{error}");
        assert_eq!(payloads(&bus, "changes").await.len(), 1, "the change before is published");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_left_the_oplog_is_an_error_that_says_how_to_reseed() {
    let port = free_port();
    let _server = Mongod::start(&temporary_folder("oplog"), port, Some(SHORT_OPLOG));
    let host = format!("127.0.0.1:{port}");
    let config = doc! { "_id": SHORT_OPLOG, "members": [{ "_id": 0, "host": &host }] };
    until("the server is there", || async {
        admin(port, doc! { "replSetInitiate": config.clone() }).await.is_ok()
    })
    .await;
    let database = open_database(&format!("mongodb://{host}/?replicaSet={SHORT_OPLOG}"), "feed").await;
    let users = database.collection::<Document>("users");
    users.insert_one(doc! { "_id": 1 }).await.unwrap();
    let options = ChangefeedOptions::collection("users").topic("changes");
    drop(Changefeed::open(&database, Arc::new(Bus::memory()), options.clone()).await.unwrap());
    users.insert_one(doc! { "_id": 2 }).await.unwrap();
    // Waits until the oplog begins after that position.
    let oplog = database.client().database("local").collection::<Document>("oplog.rs");
    let oldest = async || oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await.unwrap().unwrap();
    let (at_first, filler) = (oldest().await, database.collection::<Document>("filler"));
    let started = Instant::now();
    while oldest().await == at_first {
        assert!(started.elapsed() < Duration::from_secs(90), "the oplog still contains the position");
        filler.insert_one(doc! { "text": "x".repeat(1 << 20) }).await.unwrap();
    }
    let feed = Changefeed::open(&database, Arc::new(Bus::memory()), options.clone()).await.unwrap().spawn();
    until("it ends", || async { feed.is_finished() }).await;
    let error = feed.stop().await.unwrap_err();
    assert!(matches!(error, ChangefeedError::HistoryLost { .. }), "{error}");
    assert!(error.to_string().contains("reseed"), "{error}");
    let bus = Bus::memory();
    let feed = Changefeed::open(&database, Arc::new(bus.clone()), options.reseed()).await.unwrap().spawn();
    until("the seed", || async { payloads(&bus, "changes").await.len() == 2 }).await;
    users.insert_one(doc! { "_id": 3 }).await.unwrap();
    until("what comes after", || async { payloads(&bus, "changes").await.len() == 3 }).await;
    feed.stop().await.unwrap();
}

const URL: &str = "PROMBUS_FEED_URL";
const FOLDER: &str = "PROMBUS_FEED_FOLDER";

async fn open_feed(database: &Database, bus: &Bus) -> Changefeed {
    let options = ChangefeedOptions {
        full_document: FullDocument::No,
        ..ChangefeedOptions::collection("counters").topic("changes")
    };
    Changefeed::open(database, Arc::new(bus.clone()), options).await.unwrap()
}

/// Not a test itself: the process that runs a feed until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed() {
    let Ok(url) = std::env::var(URL) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let database = open_database(&url, "feed").await;
    let bus = open_bus(&folder).await;
    let feed = open_feed(&database, &bus).await;
    say("FEEDS");
    feed.run_until(std::future::pending()).await.unwrap();
}

/// While changes continue, the feed is restarted, the feed is killed, and the primary is killed (kill -9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_survive_a_restart_a_kill_and_a_failover() {
    let mut set = ReplicaSet::start().await;
    let folder = temporary_folder("feed");
    let database = open_database(&set.url, "feed").await;
    database.create_collection("counters").await.unwrap();
    let bus = open_bus(&folder).await;
    let feed = open_feed(&database, &bus).await.spawn();
    let is_enough = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_changes(database.clone(), Arc::clone(&is_enough)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    feed.stop().await.unwrap();
    let feed = open_feed(&database, &bus).await.spawn();
    tokio::time::sleep(Duration::from_millis(300)).await;
    feed.stop().await.unwrap();
    bus.close().await.unwrap();
    drop(bus);
    for _ in 0..3 {
        let variables = [(URL, Path::new(&set.url)), (FOLDER, folder.as_path())];
        let child = Child::start("changefeed::a_process_that_is_killed", &variables);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert!(!child.kill().is_empty(), "it was killed before it published a change");
    }
    let bus = open_bus(&folder).await;
    let feed = open_feed(&database, &bus).await.spawn();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let primary = set.primary().await;
    set.members[primary].kill();
    let killed = Instant::now();
    let before = feed.figures().published;
    until("changes are published again", || async { feed.figures().published > before + 100 }).await;
    let outage = killed.elapsed();
    set.members[primary].restart();
    is_enough.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();
    until("all changes are events", || async { last_value(&bus, &written).await }).await;
    let figures = feed.figures();
    feed.stop().await.unwrap();
    // The values of each document must be 1, 2, 3, ..., each once and in order.
    let mut values: BTreeMap<String, i64> = BTreeMap::new();
    let events = parsed(&bus, "changes").await;
    for event in &events {
        let id = event["_id"].as_str().unwrap().to_owned();
        let value = match event["op"].as_str().unwrap() {
            "insert" => event["document"]["n"].as_i64().unwrap(),
            _ => event["update"]["updatedFields"]["n"].as_i64().unwrap(),
        };
        let before = values.insert(id.clone(), value).unwrap_or(0);
        assert_eq!(value, before + 1, "{id}: a change is missing, twice, or out of order");
    }
    assert_eq!(values, written);
    println!(
        "{} changes are {} events; {} were published again; outage {} ms",
        written.values().sum::<i64>(),
        events.len(),
        figures.duplicates,
        outage.as_millis()
    );
    assert_eq!(all(&database, "counters").await.len(), written.len());
}

async fn last_value(bus: &Bus, written: &BTreeMap<String, i64>) -> bool {
    payloads(bus, "changes").await.len() as i64 >= written.values().sum::<i64>()
}

/// Counts up in 20 documents until it is enough, and returns the last value of each. A write is repeated until it succeeds: if only its
/// response was lost, the repetition changes nothing.
async fn write_changes(database: Database, is_enough: Arc<AtomicBool>) -> BTreeMap<String, i64> {
    let counters = database.collection::<Document>("counters");
    let write = |document: usize| {
        let (counters, is_enough) = (counters.clone(), Arc::clone(&is_enough));
        async move {
            let id = format!("d{document}");
            let mut last = 0;
            while !is_enough.load(Ordering::Relaxed) {
                last += 1;
                let update = doc! { "$set": { "n": last } };
                while counters.update_one(doc! { "_id": &id }, update.clone()).upsert(true).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (id, last)
        }
    };
    futures_util::future::join_all((0..20).map(write)).await.into_iter().collect()
}
