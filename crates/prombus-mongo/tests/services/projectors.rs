//! Tests projectors: position and documents commit in one transaction.

use crate::setup::{all, database, payloads, publish_numbers, until};
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{ClientSession, Collection, IndexModel};
use prombus::{AfterFailure, BoxFuture, Bus, Event};
use prombus_mongo::{
    ChangelogOptions, ChangelogProjector, HandlerError, MongoProjection, MongoProjector, MongoProjectorError,
    MongoProjectorOptions, mongodb,
};

/// Sums by key.
pub struct Totals(pub Collection<Document>);

impl MongoProjection for Totals {
    fn fold<'a>(
        &'a mut self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let number: i64 = event.json()?;
            let key = event.key().ok_or("an event needs a key")?;
            let add = doc! { "$inc": { "sum": number, "events": 1_i64 } };
            self.0.update_one(doc! { "_id": key }, add).upsert(true).session(session).await?;
            Ok(())
        })
    }

    fn clear(&mut self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            self.0.delete_many(doc! {}).await?;
            Ok(())
        })
    }
}

/// The sums of 0..count by key.
pub fn sums(count: u64) -> Vec<(String, i64)> {
    (0..10.min(count)).map(|key| (format!("k{key}"), (key..count).step_by(10).sum::<u64>() as i64)).collect()
}

pub async fn read_sums(totals: &Collection<Document>) -> Vec<(String, i64)> {
    use futures_util::TryStreamExt as _;
    let found: Vec<Document> =
        totals.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap();
    found.iter().map(|it| (it.get_str("_id").unwrap().to_owned(), it.get_i64("sum").unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_folded_once_over_restarts_and_a_rebuild_starts_over() {
    let (database, _drop) = database().await;
    let totals = database.collection::<Document>("totals");
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 0..150).await;
    let options = MongoProjectorOptions::group("p").topic("a");
    let open = |options: MongoProjectorOptions| {
        MongoProjector::open(&bus, &database, options, Totals(totals.clone()))
    };
    let mut first = open(options.clone()).await.unwrap();
    first.next().await.unwrap();
    assert_eq!(first.figures().position, 100);
    // A second projector takes over; the first one is refused from then on.
    let mut second = open(options.clone()).await.unwrap();
    let refused = first.next().await.unwrap_err();
    assert!(matches!(refused, MongoProjectorError::Superseded), "{refused}");
    second.next().await.unwrap();
    assert_eq!(read_sums(&totals).await, sums(150));
    // The group is moved back: folded events are not folded again.
    bus.seek("a", "p", prombus::Start::Earliest).await.unwrap();
    publish_numbers(&bus, "a", 150..200).await;
    let running = second.spawn();
    until("all are folded", || async { running.figures().position == 200 }).await;
    assert_eq!(running.figures().skipped, 150);
    assert!(
        running.to_prometheus().contains("prombus_mongo_projector_position{topic=\"a\",group=\"p\"} 200")
    );
    running.stop().await.unwrap();
    assert_eq!(read_sums(&totals).await, sums(200));
    // The position is moved back, as after a restore of the database: the group follows it.
    let positions = database.collection::<Document>("prombus_positions");
    let position = positions.find_one(doc! {}).await.unwrap().unwrap();
    let event =
        bus.read_from(&prombus::Topic::new("a").unwrap(), 100, prombus::PullLimit::default()).await.unwrap();
    let back = doc! { "$set": { "seq": 100_i64, "id": event.events[0].id().to_string() } };
    positions.update_one(doc! { "_id": position.get_str("_id").unwrap() }, back).await.unwrap();
    let mut third = open(options.clone()).await.unwrap();
    third.next().await.unwrap();
    assert_eq!((third.figures().folded, third.figures().position), (100, 200));
    drop(third);
    let mut rebuilt = open(MongoProjectorOptions { rebuild: true, ..options }).await.unwrap();
    while rebuilt.figures().position < 200 {
        rebuilt.next().await.unwrap();
    }
    assert_eq!(read_sums(&totals).await, sums(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_events_become_dead_letters() {
    let (database, _drop) = database().await;
    let totals = database.collection::<Document>("totals");
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 0..5).await;
    bus.publish("a", &"no number").key("k1").await.unwrap();
    bus.publish("a", &7).await.unwrap();
    publish_numbers(&bus, "a", 5..10).await;
    let options = MongoProjectorOptions::group("p").topic("a");
    let running =
        MongoProjector::open(&bus, &database, options, Totals(totals.clone())).await.unwrap().spawn();
    until("all are folded", || async { running.figures().position == 12 }).await;
    let figures = running.figures();
    assert_eq!((figures.folded, figures.rejected), (10, 2));
    assert_eq!(read_sums(&totals).await, sums(10));
    let letters = payloads(&bus, "dlq.a").await;
    assert!(letters.len() == 2 && letters[1].contains("an event needs a key"), "{letters:?}");
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changelog_keeps_the_state_of_its_topic_in_a_collection() {
    let (database, _drop) = database().await;
    let users = database.collection::<Document>("users");
    let unique = IndexOptions::builder().unique(true).sparse(true).build();
    users.create_index(IndexModel::builder().keys(doc! { "mail": 1 }).options(unique).build()).await.unwrap();
    let bus = Bus::memory();
    let publish =
        async |key: &str, json: serde_json::Value| bus.publish("users", &json).key(key).await.unwrap();
    publish("ann", serde_json::json!({ "mail": "ann@x", "age": 30, "_id": 5, "_v": 9 })).await;
    publish("bob", serde_json::json!({ "mail": "bob@x" })).await;
    publish("bob", serde_json::Value::Null).await;
    publish("cat", serde_json::json!({ "mail": "ann@x" })).await;
    publish("dan", serde_json::json!({ "$bad": 1 })).await;
    publish("eve", serde_json::json!(17)).await;
    let newest = publish("ann", serde_json::json!({ "mail": "ann@y" })).await;
    publish("fay", serde_json::json!({ "mail": "ann@x" })).await;
    // Written by another program, with a newer version.
    users.insert_one(doc! { "_id": "eve", "_key": "eve", "_v": 1_000_i64, "value": 99 }).await.unwrap();
    let options = ChangelogOptions::group("p").topic("users").collection("users");
    let running = ChangelogProjector::open(&bus, &database, options.clone()).await.unwrap().spawn();
    until("all are folded", || async { running.figures().position == 8 }).await;
    assert_eq!(running.figures().rejected, 2);
    let failure = running.last_error().expect("events were rejected");
    assert_eq!(failure.event.map(|event| event.seq), Some(5), "the last one that was rejected");
    assert!(failure.error.contains("$bad") && failure.next == AfterFailure::DeadLetter, "{}", failure.error);
    running.stop().await.unwrap();
    let mut found = all(&database, "users").await;
    found.sort_by_key(|it| it.get_str("_id").unwrap().to_owned());
    let keys: Vec<&str> = found.iter().map(|it| it.get_str("_key").unwrap()).collect();
    assert_eq!(keys, ["ann", "eve", "fay"]);
    assert_eq!(
        (found[0].get_str("mail").unwrap(), found[0].get_i64("_v").unwrap()),
        ("ann@y", newest.seq as i64)
    );
    assert!(found[0].get_i64("_ts").unwrap() > 0 && !found[0].contains_key("age"));
    assert_eq!(found[1].get_i32("value").unwrap(), 99, "an older version has overwritten a newer one");
    let letters = payloads(&bus, "dlq.users").await;
    assert!(
        letters.iter().any(|it| it.contains("a unique index of users refuses it") && it.contains("mail")),
        "{letters:?}"
    );
    // After a rebuild, a document that another program removed exists again.
    users.delete_one(doc! { "_id": "ann" }).await.unwrap();
    let running = ChangelogProjector::open(&bus, &database, options.rebuild()).await.unwrap().spawn();
    until("all are folded", || async { running.figures().position == 8 }).await;
    running.stop().await.unwrap();
    let ann = users.find_one(doc! { "_id": "ann" }).await.unwrap().unwrap();
    assert_eq!(ann.get_str("mail").unwrap(), "ann@y");
    assert_eq!(users.find_one(doc! { "_id": "eve" }).await.unwrap().unwrap().get_i32("value").unwrap(), 17);
}
