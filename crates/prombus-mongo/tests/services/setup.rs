//! Helpers that the tests share.

use crate::servers::{DropDatabase, fresh_database, open_database, shared_set_url};
use mongodb::Database;
use mongodb::bson::Document;
use prombus::{Bus, PublishOptions};
use prombus_mongo::mongodb;
use std::time::{Duration, Instant};

/// A new database on the replica set.
pub async fn database() -> (Database, DropDatabase) {
    let name = fresh_database();
    let database = open_database(shared_set_url(), &name).await;
    (database, DropDatabase(shared_set_url().to_owned(), name))
}

/// A transaction whose client was killed blocks others for up to a minute; a busy machine needs more.
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "timed out waiting until: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Publishes the numbers with the keys `k0` to `k9`.
pub async fn publish_numbers(bus: &Bus, topic: &str, numbers: std::ops::Range<u64>) {
    let mut batch = bus.batch();
    for number in numbers {
        let options = PublishOptions { key: Some(format!("k{}", number % 10)), ..Default::default() };
        batch.push(topic, &number, &options).unwrap();
    }
    bus.publish_batch(batch).await.unwrap();
}

/// All payloads of a topic, in order.
pub async fn payloads(bus: &Bus, topic: &str) -> Vec<String> {
    let topic = prombus::Topic::new(topic).unwrap();
    let (mut all, mut next) = (Vec::new(), 1);
    loop {
        let Ok(page) =
            bus.read_from(&topic, next, prombus::PullLimit { events: 5_000, bytes: 4 << 20 }).await
        else {
            return all;
        };
        if page.next_seq == next {
            return all;
        }
        all.extend(page.events.iter().map(|event| event.payload().to_owned()));
        next = page.next_seq;
    }
}

pub async fn all(database: &Database, collection: &str) -> Vec<Document> {
    use futures_util::TryStreamExt as _;
    let found = database.collection::<Document>(collection).find(mongodb::bson::doc! {}).await.unwrap();
    found.try_collect().await.unwrap()
}
