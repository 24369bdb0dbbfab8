//! Buses over MongoDB.

use crate::servers::{fresh_database, shared_url};
use prombus::engine::{SharedStore, Takeover};
use prombus::{Bus, SystemClock};
use prombus_mongo::{MongoOptions, MongoStore};
use std::path::Path;
use std::sync::Arc;

pub async fn durable(_folder: &Path) -> Bus {
    fresh().await
}

pub async fn fresh() -> Bus {
    let options = MongoOptions { database: Some(fresh_database()), ..MongoOptions::new(shared_url()) };
    let store = MongoStore::connect(options).await.unwrap();
    let takeover = Takeover { term: 1, was_released: true };
    let engine = store.lead(takeover, Arc::new(SystemClock::default())).await.unwrap();
    Bus::builder().over_engine(engine).unwrap()
}
