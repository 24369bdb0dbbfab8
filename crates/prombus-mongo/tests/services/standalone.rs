//! A standalone server has neither transactions nor change streams.

use crate::servers::{DropDatabase, fresh_database, open_database, shared_url};
use prombus::Bus;
use prombus_mongo::{Changefeed, ChangefeedOptions, ChangelogOptions, ChangelogProjector, MongoExactlyOnce};
use std::sync::Arc;

#[tokio::test]
async fn helpers_that_need_a_replica_set_say_so_when_they_start() {
    let name = fresh_database();
    let _drop = DropDatabase(shared_url().to_owned(), name.clone());
    let database = open_database(shared_url(), &name).await;
    let bus = Bus::memory();
    let once = MongoExactlyOnce::open(&database).await.map(|_| ()).unwrap_err().to_string();
    let options = ChangelogOptions::group("g").topic("a").collection("documents");
    let changelog =
        ChangelogProjector::open(&bus, &database, options).await.map(|_| ()).unwrap_err().to_string();
    let options = ChangefeedOptions::collection("documents").topic("a");
    let feed = Changefeed::open(&database, Arc::new(bus), options).await.map(|_| ()).unwrap_err().to_string();
    let error =
        ChangelogProjector::open(&Bus::memory(), &database, ChangelogOptions::group("g").topic("a")).await;
    assert!(error.is_err_and(|error| error.to_string().contains("collection")));
    let unset = ChangefeedOptions::collection("documents");
    let error = Changefeed::open(&database, Arc::new(Bus::memory()), unset).await;
    assert!(error.is_err_and(|error| error.to_string().contains("empty topic name")));
    for (error, needs) in [(once, "transactions"), (changelog, "transactions"), (feed, "change streams")] {
        assert!(error.contains(needs) && error.contains("--replSet"), "{error}");
    }
}
