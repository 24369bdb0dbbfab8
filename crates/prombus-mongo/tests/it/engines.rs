//! Engines and buses over a store, without leader leases: the tests decide which engine leads.

use prombus::engine::{Engine, SharedStore, Takeover};
use prombus::{Bus, OpenError, PublishOptions, PullLimit, SystemClock, Topic};
use prombus_mongo::{MongoOptions, MongoStore};
use std::sync::Arc;

pub async fn connect(url: &str, database: &str) -> MongoStore {
    connect_with(database, MongoOptions::new(url)).await
}

pub async fn connect_with(database: &str, options: MongoOptions) -> MongoStore {
    let options = MongoOptions { database: Some(database.to_owned()), ..options };
    MongoStore::connect(options).await.unwrap()
}

pub async fn lead(store: &MongoStore, term: u64) -> Result<Arc<dyn Engine>, OpenError> {
    store.lead(Takeover { term, was_released: term == 1 }, Arc::new(SystemClock::default())).await
}

pub async fn open_bus(store: &MongoStore, term: u64) -> Bus {
    Bus::builder().over_engine(lead(store, term).await.unwrap()).unwrap()
}

pub fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// Seqs and payloads of all events of a topic.
pub async fn read_numbers(bus: &Bus, name: &str) -> Vec<(u64, u64)> {
    let (mut all, mut next) = (Vec::new(), 1);
    loop {
        let page =
            bus.read_from(&topic(name), next, PullLimit { events: 1_000, bytes: 1 << 20 }).await.unwrap();
        if page.events.is_empty() && page.next_seq == next {
            return all;
        }
        all.extend(page.events.iter().map(|event| (event.seq(), event.json::<u64>().unwrap())));
        next = page.next_seq;
    }
}

/// Publishes numbers as one batch.
pub async fn publish_numbers(bus: &Bus, name: &str, numbers: std::ops::RangeInclusive<u64>) {
    let mut batch = bus.batch();
    for number in numbers {
        batch.push(name, &number, &PublishOptions::default()).unwrap();
    }
    bus.publish_batch(batch).await.unwrap();
}
