//! Takeovers by a second engine on the same store, and commits that were cut.

use crate::engines::{connect, connect_with, lead, open_bus, publish_numbers, read_numbers, topic};
use crate::servers::{DropDatabase, fresh_database, open_database, shared_url};
use futures_util::TryStreamExt as _;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use prombus::engine::{SharedStore as _, Takeover};
use prombus::{Bus, Clock, OpenError, PublishError, SystemClock, Unavailable};
use prombus_mongo::MongoOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn key(topic: u32, seq: u64) -> Bson {
    let mut bytes = topic.to_be_bytes().to_vec();
    bytes.extend_from_slice(&seq.to_be_bytes());
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes })
}

/// The number and document of the newest fence.
async fn newest_fence(events: &mongodb::Collection<Document>) -> (u64, Document) {
    let fences = doc! { "_id": { "$gte": key(0, 0), "$lt": key(1, 0) } };
    let fence = events.find_one(fences).sort(doc! { "_id": -1 }).await.unwrap().unwrap();
    let id = fence.get_binary_generic("_id").unwrap();
    (u64::from_be_bytes(id[4..].try_into().unwrap()), fence)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_engine_writes_nothing_and_names_the_leader() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let first = open_bus(&store, 1).await;
    publish_numbers(&first, "a", 1..=10).await;
    let second = open_bus(&store, 2).await;
    let refused = first.publish("a", &11).await;
    assert!(matches!(refused, Err(PublishError::Unavailable(Unavailable::Deposed(_)))), "{refused:?}");
    assert_eq!(read_numbers(&second, "a").await.len(), 10);
    publish_numbers(&second, "a", 11..=20).await;
    let expected: Vec<_> = (1..=20).map(|number| (number, number)).collect();
    assert_eq!(read_numbers(&second, "a").await, expected);
    let late = lead(&store, 1).await;
    assert!(matches!(late, Err(OpenError::Led { .. })), "an older term leads");
    // In the database: no commit of term 1 after the fence of term 2.
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let fences = doc! { "_id": { "$gte": key(0, 0), "$lt": key(1, 0) } };
    let fences: Vec<Document> =
        events.find(fences).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap();
    let terms: Vec<i64> = fences.iter().map(|fence| fence.get_i64("term").unwrap()).collect();
    assert!(terms.is_sorted() && terms.contains(&1) && terms.contains(&2), "{terms:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_cut_is_removed_by_the_next_leader() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "a", 1..=10).await;
    publish_numbers(&bus, "a", 11..=30).await;
    bus.close().await.unwrap();
    // As if the server had been killed in the middle of the bulk: its last documents are missing.
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let (number, fence) = newest_fence(&events).await;
    let written = fence.get_array("topics").unwrap()[0].as_document().unwrap().clone();
    assert_eq!((written.get_i64("from").unwrap(), written.get_i64("to").unwrap()), (11, 30));
    events.delete_many(doc! { "_id": { "$gte": key(2, 20), "$lte": key(2, 30) } }).await.unwrap();
    let records = doc! { "_id": { "$gte": key(1, number * 256), "$lt": key(1, (number + 1) * 256) } };
    assert_eq!(events.delete_many(records).await.unwrap().deleted_count, 1);
    let bus = open_bus(&store, 2).await;
    let expected: Vec<_> = (1..=10).map(|number| (number, number)).collect();
    assert_eq!(read_numbers(&bus, "a").await, expected, "a part of an unanswered publish is visible");
    let left = events.count_documents(doc! { "commit": number as i64 }).await.unwrap();
    assert_eq!(left, 0, "documents of the cut commit are left");
    publish_numbers(&bus, "a", 101..=103).await;
    bus.close().await.unwrap();
    // The void commit stays void for the next leader.
    let bus = open_bus(&store, 3).await;
    let seqs: Vec<_> = read_numbers(&bus, "a").await.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=13).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_an_older_commit_left_are_removed_before_the_response() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "a", 1..=10).await;
    // The remains of a bulk that was still running when this leader read the last seqs.
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let mut stray = events.find_one(doc! { "_id": key(2, 5) }).await.unwrap().unwrap();
    stray.insert("_id", key(2, 13));
    stray.insert("commit", 1_i64);
    events.insert_one(stray).await.unwrap();
    publish_numbers(&bus, "a", 11..=15).await;
    let expected: Vec<_> = (1..=15).map(|number| (number, number)).collect();
    assert_eq!(read_numbers(&bus, "a").await, expected);
    bus.close().await.unwrap();
    let bus = open_bus(&store, 2).await;
    assert_eq!(read_numbers(&bus, "a").await, expected, "the confirmed events are not the stored events");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_commit_is_an_error_and_not_a_gap() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "a", 1..=10).await;
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let (number, _) = newest_fence(&events).await;
    publish_numbers(&bus, "a", 11..=20).await;
    bus.close().await.unwrap();
    events.delete_one(doc! { "_id": key(0, number) }).await.unwrap();
    let opened = lead(&store, 2).await.map(|_| ()).unwrap_err().to_string();
    assert!(opened.contains(&format!("commit {number} is missing")), "{opened}");
}

/// A leader that was paused for a long time finds its next number taken, although snapshots have removed the commits of that time.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_wakes_after_a_snapshot_writes_nothing() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let options = MongoOptions { snapshot_commits: 5, ..MongoOptions::new(shared_url()) };
    let store = connect_with(&database, options).await;
    let first = open_bus(&store, 1).await;
    publish_numbers(&first, "a", 1..=3).await;
    let second = open_bus(&store, 2).await;
    for number in 4..=40 {
        publish_numbers(&second, "a", number..=number).await;
    }
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let removed = async || events.find_one(doc! { "_id": key(0, 6) }).await.unwrap().is_none();
    while !removed().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (newest, _) = newest_fence(&events).await;
    // First a commit with only records, which would not collide, then events at seqs that the other leader has written.
    let settings = prombus::TopicOptions { retention_days: Some(1.0), ..Default::default() };
    first.set_topic(&topic("a"), settings).await.unwrap_err();
    let refused = first.publish("a", &1_000).await;
    assert!(matches!(refused, Err(PublishError::Unavailable(Unavailable::Deposed(_)))), "{refused:?}");
    let expected: Vec<_> = (1..=40).map(|number| (number, number)).collect();
    assert_eq!(read_numbers(&second, "a").await, expected);
    assert_eq!(newest_fence(&events).await.0, newest);
    second.close().await.unwrap();
    assert_eq!(read_numbers(&open_bus(&store, 3).await, "a").await, expected);
}

/// A clock that advances by ten seconds whenever it is read, as after a pause.
struct LateClock(SystemClock, AtomicU64);

impl Clock for LateClock {
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }
    fn steady_ms(&self) -> u64 {
        self.1.fetch_add(10_000, Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_response_counts_if_the_fence_is_whole() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let takeover = Takeover { term: 1, was_released: true };
    let clock = Arc::new(LateClock(SystemClock::default(), AtomicU64::new(0)));
    let bus = Bus::builder().over_engine(store.lead(takeover, clock).await.unwrap()).unwrap();
    publish_numbers(&bus, "a", 1..=10).await;
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    assert!(newest_fence(&events).await.1.get_bool("whole").unwrap());
    let expected: Vec<_> = (1..=10).map(|number| (number, number)).collect();
    assert_eq!(read_numbers(&bus, "a").await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn remains_above_the_last_seq_are_not_duplicates() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    let id = prombus::Uuid::from_u128(77);
    bus.publish("a", &1).id(id).await.unwrap();
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let mut stray = events.find_one(doc! { "_id": key(2, 1) }).await.unwrap().unwrap();
    let other = Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: vec![8; 16] });
    stray.extend(doc! { "_id": key(2, 50), "seq": 50_i64, "commit": 1_i64, "client_id": other });
    events.insert_one(stray).await.unwrap();
    let published = bus.publish("a", &2).id(prombus::Uuid::from_bytes([8; 16])).await.unwrap();
    assert_eq!((published.seq, published.duplicate), (2, false));
    let again = bus.publish("a", &2).id(prombus::Uuid::from_bytes([8; 16])).await.unwrap();
    assert_eq!((again.seq, again.duplicate), (2, true));
    assert_eq!(read_numbers(&bus, "a").await, [(1, 1), (2, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_records_and_a_snapshot_without_its_commits_are_errors() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    // A snapshot would remove the records: this store writes none so early.
    let store = connect(shared_url(), &database).await;
    let opened = open_database(shared_url(), &database).await;
    let events = opened.collection::<Document>("events");
    let bus = open_bus(&store, 1).await;
    for number in 1..=3 {
        publish_numbers(&bus, "a", number..=number).await;
    }
    bus.close().await.unwrap();
    let (number, _) = newest_fence(&events).await;
    let records =
        events.find_one_and_delete(doc! { "_id": key(1, (number - 1) * 256) }).await.unwrap().unwrap();
    let error = lead(&store, 2).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("commit {} is missing", number - 1)), "{error}");
    events.insert_one(records).await.unwrap();
    let options = MongoOptions { snapshot_commits: 5, ..MongoOptions::new(shared_url()) };
    let store = connect_with(&database, options).await;
    let bus = open_bus(&store, 3).await;
    for number in 4..=20 {
        publish_numbers(&bus, "a", number..=number).await;
    }
    let snapshots = opened.collection::<Document>("snapshots");
    while snapshots.count_documents(doc! {}).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bus.close().await.unwrap();
    // As after a restore of only the snapshots.
    events.delete_many(doc! { "_id": { "$gte": key(0, 0), "$lt": key(2, 0) } }).await.unwrap();
    let error = lead(&store, 4).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("only a part of the database was restored"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodbs_own_databases_are_refused() {
    for name in ["admin", "local", "config"] {
        let options = MongoOptions { database: Some(name.to_owned()), ..MongoOptions::new(shared_url()) };
        let refused = prombus_mongo::MongoStore::connect(options).await.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("authSource"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_of_another_program_is_refused() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let other = open_database(shared_url(), &database).await.collection::<Document>("events");
    other.insert_one(doc! { "theirs": 1 }).await.unwrap();
    let options = prombus_mongo::MongoOptions {
        database: Some(database.clone()),
        ..prombus_mongo::MongoOptions::new(shared_url())
    };
    let refused =
        prombus_mongo::MongoStore::connect(options.clone()).await.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("was not made by prombus") && refused.contains("prefix"), "{refused}");
    let options = prombus_mongo::MongoOptions { prefix: "bus_".to_owned(), ..options };
    prombus_mongo::MongoStore::connect(options).await.unwrap();
    assert_eq!(other.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_contains_a_password() {
    for url in [
        "mongodb://user:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=200",
        "mongodb://user:hunter2@127.0.0.1:1/?noSuchOption=true&serverSelectionTimeoutMS=200",
        "mongodb://user:hunter2@:bad:/",
    ] {
        let options = prombus_mongo::MongoOptions::new(url);
        assert!(!format!("{options:?}").contains("hunter2"));
        let error = prombus_mongo::MongoStore::connect(options).await.map(|_| ()).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    }
}
