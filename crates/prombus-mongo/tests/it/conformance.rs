//! The rules that every engine passes, on a standalone server and on a replica set.

use crate::servers::{DropDatabase, fresh_database, shared_set_url, shared_url};
use prombus::conformance::Subject;
use prombus::engine::{SharedStore, Takeover};
use prombus::{Bus, SystemClock};
use prombus_mongo::{MongoOptions, MongoStore};
use std::sync::Arc;

async fn subject(url: &str) -> Subject {
    let database = fresh_database();
    let options = MongoOptions { database: Some(database.clone()), ..MongoOptions::new(url) };
    let store = MongoStore::connect(options).await.unwrap();
    let takeover = Takeover { term: 1, was_released: true };
    let engine = store.lead(takeover, Arc::new(SystemClock::default())).await.unwrap();
    let bus = Bus::builder().over_engine(engine).unwrap();
    Subject::with_guard(bus, DropDatabase(url.to_owned(), database))
}

mod standalone {
    use super::*;

    async fn make_bus() -> Subject {
        subject(shared_url()).await
    }

    prombus::conformance_suite!(make_bus);
}

mod replica_set {
    use super::*;

    async fn make_bus() -> Subject {
        subject(shared_set_url()).await
    }

    prombus::conformance_suite!(make_bus);
}
