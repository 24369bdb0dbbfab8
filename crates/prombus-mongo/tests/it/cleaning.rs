//! Retention, topic deletion, ids of cleaned events, snapshots, and the derived collections.

use crate::engines::{connect, connect_with, lead, open_bus, publish_numbers, read_numbers, topic};
use crate::servers::{DropDatabase, fresh_database, open_database, shared_url};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use prombus::engine::{Liveness, MayBlock, TopicId};
use prombus::{Bus, PublishOptions, Uuid};
use prombus_mongo::MongoOptions;
use std::time::{Duration, Instant};

/// All events are live, except those that retention removes.
struct AllLive;

impl Liveness for AllLive {
    fn first_live(&self, _topic: TopicId) -> u64 {
        0
    }
    fn is_sparse(&self, _topic: TopicId) -> bool {
        false
    }
    fn live_in(&self, _topic: TopicId, _first: u64, _last: u64) -> Option<prombus::engine::LiveCount> {
        None
    }
    fn is_live(&self, _topic: TopicId, _seq: u64) -> bool {
        true
    }
}

async fn wait_for<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cleaned_events_lose_their_payloads_but_their_ids_stay_known() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let engine = lead(&store, 1).await.unwrap();
    let bus = Bus::builder().over_engine(std::sync::Arc::clone(&engine)).unwrap();
    for number in 1..=10_u64 {
        let with_id =
            PublishOptions { id: Some(Uuid::from_u128(number.into())), ..PublishOptions::default() };
        let mut batch = bus.batch();
        batch.push("a", &number, &with_id).unwrap();
        batch.push("a", &(number + 100), &PublishOptions::default()).unwrap();
        bus.publish_batch(batch).await.unwrap();
    }
    let id = engine.topics()[0].id;
    engine.retain_from(&[(id, 16)]).unwrap();
    let cleaned = {
        let engine = std::sync::Arc::clone(&engine);
        let clean = move || engine.clean(&AllLive, false, MayBlock::on_this_thread());
        tokio::task::spawn_blocking(clean).await.unwrap().unwrap()
    };
    assert_eq!(cleaned.events, 15);
    assert!(cleaned.bytes > 0);
    assert_eq!(read_numbers(&bus, "a").await[0], (16, 108));
    let again = bus.publish("a", &0).id(Uuid::from_u128(3)).await.unwrap();
    assert_eq!((again.seq, again.duplicate), (5, true));
    let usage = engine.usage(vec![id]).await.unwrap()[0].unwrap();
    assert_eq!(usage.events, 5);
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    let stubs = doc! { "topic_no": id.number() as i32, "expire_at": { "$exists": true } };
    assert_eq!(events.count_documents(stubs.clone()).await.unwrap(), 8);
    stubs_have_no_content(&events.find_one(stubs).await.unwrap().unwrap());
    bus.close().await.unwrap();
    let bus = open_bus(&store, 2).await;
    assert_eq!(read_numbers(&bus, "a").await.len(), 5);
    assert!(bus.publish("a", &0).id(Uuid::from_u128(3)).await.unwrap().duplicate);
    bus.delete_topic(&topic("a")).await.unwrap();
    let fresh = bus.publish("a", &0).id(Uuid::from_u128(3)).await.unwrap();
    assert_eq!((fresh.seq, fresh.duplicate), (1, false), "a new topic of the same name knows no old ids");
}

fn stubs_have_no_content(stub: &Document) {
    let names: Vec<&str> = stub.keys().map(String::as_str).collect();
    assert_eq!(names, ["_id", "topic_no", "seq", "client_id", "expire_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_a_deleted_topic_are_removed_even_after_a_restart() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "a", 1..=100).await;
    publish_numbers(&bus, "b", 1..=3).await;
    bus.delete_topic(&topic("a")).await.unwrap();
    bus.close().await.unwrap();
    let engine = lead(&store, 2).await.unwrap();
    {
        let engine = std::sync::Arc::clone(&engine);
        let clean = move || engine.clean(&AllLive, false, MayBlock::on_this_thread());
        tokio::task::spawn_blocking(clean).await.unwrap().unwrap();
    }
    let events = open_database(shared_url(), &database).await.collection::<Document>("events");
    assert_eq!(events.count_documents(doc! { "topic": "a" }).await.unwrap(), 0);
    assert_eq!(events.count_documents(doc! { "topic": "b" }).await.unwrap(), 3);
    let bus = Bus::builder().over_engine(engine).unwrap();
    let names: Vec<_> = bus.topics().await.unwrap().iter().map(|it| it.topic.to_string()).collect();
    assert_eq!(names, ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_and_topics_are_visible_within_about_a_second() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let store = connect(shared_url(), &database).await;
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "orders", 1..=5).await;
    let mut orders = bus.subscribe("orders", "billing").from_earliest().await.unwrap();
    let mut last = None;
    for _ in 0..3 {
        let delivery = orders.next().await.unwrap().unwrap();
        delivery.ack().await.unwrap();
        last = Some((delivery.event().id().to_string(), delivery.event().ts()));
    }
    let (last_id, last_ts) = last.unwrap();
    let opened = open_database(shared_url(), &database).await;
    let cursors = opened.collection::<Document>("cursors");
    wait_for("the cursor is not there", || async {
        let cursor = cursors.find_one(doc! { "_id": "orders::billing" }).await.unwrap();
        cursor.is_some_and(|cursor| {
            cursor.get_str("lastId").unwrap() == last_id
                && cursor.get_i64("lastTs").unwrap() == last_ts
                && cursor.get_str("topic").unwrap() == "orders"
        })
    })
    .await;
    let topics = opened.collection::<Document>("topics");
    let found = topics.find_one(doc! { "name": "orders" }).await.unwrap();
    assert_eq!(found.unwrap().get_i32("_id").unwrap(), 2);
    drop(orders);
    bus.delete_group("orders", "billing").await.unwrap();
    wait_for("the cursor of a deleted group stays", || async {
        cursors.count_documents(doc! {}).await.unwrap() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_replace_commits_and_a_takeover_reads_them() {
    let database = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), database.clone());
    let options = MongoOptions { snapshot_commits: 20, ..MongoOptions::new(shared_url()) };
    let store = connect_with(&database, options).await;
    let opened = open_database(shared_url(), &database).await;
    let (events, snapshots) =
        (opened.collection::<Document>("events"), opened.collection::<Document>("snapshots"));
    let bus = open_bus(&store, 1).await;
    publish_numbers(&bus, "a", 1..=3).await;
    let mut members = bus.subscribe("a", "g").from_earliest().await.unwrap();
    members.next().await.unwrap().unwrap().ack().await.unwrap();
    let commits = doc! { "$or": [{ "writer": { "$exists": true } }, { "records": { "$exists": true } }] };
    let mut early: Vec<Document> = events.find(commits.clone()).await.unwrap().try_collect().await.unwrap();
    assert!(early.len() >= 4, "{early:?}");

    // One commit each.
    for days in 1..=50 {
        let options = prombus::TopicOptions { retention_days: Some(f64::from(days)), ..Default::default() };
        bus.set_topic(&topic("a"), options).await.unwrap();
    }
    let snapshots_of = || async { snapshots.count_documents(doc! {}).await.unwrap() };
    let commits_of = || async { events.count_documents(commits.clone()).await.unwrap() };
    // Without snapshots there would be a fence and a record of 54 commits.
    wait_for("one snapshot, and only commits since", || async {
        snapshots_of().await == 1 && commits_of().await < 60
    })
    .await;
    drop(members);
    bus.close().await.unwrap();

    // As if the process had ended before it removed the commits that the snapshot replaces ...
    // (the fences of takeovers are still there)
    early.retain(|it| !it.get_i32("records").is_ok_and(|pieces| pieces == 0));
    events.insert_many(&early).await.unwrap();
    // ... and in the middle of a newer snapshot.
    let mut half = snapshots.find_one(doc! {}).await.unwrap().unwrap();
    let number = half.get_document("_id").unwrap().get_i64("n").unwrap();
    half.insert("_id", doc! { "n": number + 1, "piece": 0 });
    half.insert("pieces", 2);
    snapshots.insert_one(half).await.unwrap();

    let bus = open_bus(&store, 2).await;
    assert_eq!(read_numbers(&bus, "a").await.len(), 3);
    let mut members = bus.subscribe("a", "g").await.unwrap();
    assert_eq!(members.next().await.unwrap().unwrap().event().seq(), 2);
}
