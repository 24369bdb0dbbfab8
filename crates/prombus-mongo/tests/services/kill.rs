//! Kills a service with kill -9 at random points, many times for each helper.

use crate::child::{Child, open_bus, say};
use crate::projectors::{Totals, read_sums, sums};
use crate::servers::{DropDatabase, fresh_database, open_database, shared_set_url, temporary_folder};
use crate::setup::{all, payloads, publish_numbers, until};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use prombus::outbox::{OutboxDrainer, OutboxRecord};
use prombus::{Bus, Uuid};
use prombus_mongo::{
    ChangelogOptions, ChangelogProjector, HandlerError, MongoExactlyOnce, MongoOutbox, MongoProjector,
    MongoProjectorError, MongoProjectorOptions, mongodb,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const URL: &str = "PROMBUS_SERVICE_URL";
const DATABASE: &str = "PROMBUS_SERVICE_DATABASE";
const FOLDER: &str = "PROMBUS_SERVICE_FOLDER";
const KIND: &str = "PROMBUS_SERVICE_KIND";
const ROUNDS: u64 = 6;
/// The number of events for the consumers.
const EVENTS: u64 = 6_000;

/// The number of rounds; `PROMBUS_TEST_ROUNDS` overrides it.
fn rounds() -> u64 {
    std::env::var("PROMBUS_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// Not a test itself: the service that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_that_is_killed() {
    let Ok(kind) = std::env::var(KIND) else { return };
    let database = open_database(&std::env::var(URL).unwrap(), &std::env::var(DATABASE).unwrap()).await;
    let bus = open_bus(&PathBuf::from(std::env::var(FOLDER).unwrap())).await;
    serve(&kind, &database, &bus, true).await;
}

/// Runs a service until its work is done. With `is_busy` it creates new work all the time and never ends.
async fn serve(kind: &str, database: &Database, bus: &Bus, is_busy: bool) {
    match kind {
        "outbox" => {
            let outbox = MongoOutbox::open(database).await.unwrap();
            let drainer = OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus.clone()));
            let drainer = drainer.lease_ms(300).batch_size(20).interval(Duration::from_millis(10)).spawn();
            if is_busy {
                loop {
                    order(database, &outbox).await;
                }
            }
            until("all rows are sent", || async {
                outbox.counts().await.unwrap().keys().all(|status| status == "sent")
            })
            .await;
            drainer.stop().await;
        }
        "exactly-once" => {
            let once = MongoExactlyOnce::open(database).await.unwrap().events_per_transaction(7);
            let ledger = database.collection::<Document>("ledger");
            let subscribe = bus.subscribe("payments", "ledger").from_earliest().max_attempts(1_000);
            let handler = once.handler(subscribe, move |event, session| {
                let ledger = ledger.clone();
                Box::pin(async move {
                    // The collection has no unique key, so a repeated effect would be visible.
                    ledger.insert_one(doc! { "seq": event.seq() as i64 }).session(session).await?;
                    Ok::<(), HandlerError>(())
                })
            });
            let handler = handler.await.unwrap();
            until_floor(bus, "payments", "ledger", || false).await;
            handler.unsubscribe().await.unwrap();
        }
        "projector" => {
            let options = MongoProjectorOptions {
                batch_size: 10,
                ..MongoProjectorOptions::group("totals").topic("payments")
            };
            // The take-over of a killed process may still succeed later; then the projector is reopened.
            loop {
                let totals = Totals(database.collection("totals"));
                let opened = MongoProjector::open(bus, database, options.clone(), totals).await;
                let running = opened.unwrap().spawn();
                until_floor(bus, "payments", "totals", || running.is_finished()).await;
                match running.stop().await {
                    Err(MongoProjectorError::Superseded) => {}
                    ended => break ended.unwrap(),
                }
            }
        }
        "changelog" => {
            let mut options = ChangelogOptions::group("newest").topic("payments").collection("newest");
            options.projector.batch_size = 10;
            loop {
                let opened = ChangelogProjector::open(bus, database, options.clone()).await;
                let running = opened.unwrap().spawn();
                until_floor(bus, "payments", "newest", || running.is_finished()).await;
                match running.stop().await {
                    Err(MongoProjectorError::Superseded) => {}
                    ended => break ended.unwrap(),
                }
            }
        }
        other => panic!("unknown service {other}"),
    }
    say("DONE");
}

/// Waits until a group has settled all events, or its consumer has ended.
async fn until_floor(bus: &Bus, topic: &str, group: &str, is_over: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    loop {
        let info = bus.group(topic, group).await.unwrap();
        if is_over() || info.as_ref().is_some_and(|it| it.topics[0].floor == EVENTS) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(180), "{group} does not finish: {info:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An order and its event, in one transaction.
async fn order(database: &Database, outbox: &MongoOutbox) {
    let id = Uuid::new_v4();
    let mut session = database.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let order = doc! { "_id": id.to_string() };
    let orders = database.collection::<Document>("orders");
    orders.insert_one(order).session(&mut session).await.unwrap();
    let record = OutboxRecord::new(id, "orders", &id.to_string()).unwrap();
    outbox.add(&record, Some(&mut session)).await.unwrap();
    session.commit_transaction().await.unwrap();
}

/// Kills a service repeatedly, then lets it finish.
async fn kill_rounds(kind: &'static str) -> (Database, Bus, DropDatabase) {
    let name = fresh_database();
    let dropped = DropDatabase(shared_set_url().to_owned(), name.clone());
    let database = open_database(shared_set_url(), &name).await;
    for collection in ["orders", "ledger", "totals", "newest"] {
        database.create_collection(collection).await.unwrap();
    }
    let folder = temporary_folder(kind);
    if kind != "outbox" {
        let bus = open_bus(&folder).await;
        for first in (0..EVENTS).step_by(1_000) {
            publish_numbers(&bus, "payments", first..first + 1_000).await;
        }
        bus.close().await.unwrap();
    }
    let mut killed_at_work = 0;
    for round in 0..rounds() {
        let variables = [
            (URL, Path::new(shared_set_url())),
            (DATABASE, Path::new(&name)),
            (FOLDER, folder.as_path()),
            (KIND, Path::new(kind)),
        ];
        let child = Child::start("kill::the_service_that_is_killed", &variables);
        // Sometimes this is during its start, mostly while it works.
        tokio::time::sleep(Duration::from_millis(40 + (round * 7_919) % 500)).await;
        killed_at_work += u64::from(!child.kill().iter().any(|line| line.contains("DONE")));
    }
    let bus = open_bus(&folder).await;
    serve(kind, &database, &bus, false).await;
    println!("{kind}: {} kills, {killed_at_work} before its work was done", rounds());
    (database, bus, dropped)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_publishes_exactly_the_committed_rows() {
    let (database, bus, _drop) = kill_rounds("outbox").await;
    let mut orders: Vec<String> =
        all(&database, "orders").await.iter().map(|it| it.get_str("_id").unwrap().to_owned()).collect();
    let mut events: Vec<String> =
        payloads(&bus, "orders").await.iter().map(|it| it.trim_matches('"').to_owned()).collect();
    // A busy machine starts few services in time; with no order at all the test would prove nothing.
    assert!(orders.len() > 10, "{} orders", orders.len());
    println!("{} orders, {} events", orders.len(), events.len());
    orders.sort();
    events.sort();
    assert_eq!(orders, events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_once_applies_every_effect_once() {
    let (database, _bus, _drop) = kill_rounds("exactly-once").await;
    let mut seqs: Vec<i64> =
        all(&database, "ledger").await.iter().map(|it| it.get_i64("seq").unwrap()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=EVENTS as i64).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projector_folds_every_event_once() {
    let (database, _bus, _drop) = kill_rounds("projector").await;
    assert_eq!(read_sums(&database.collection("totals")).await, sums(EVENTS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changelog_ends_with_the_newest_event_of_every_key() {
    let (database, _bus, _drop) = kill_rounds("changelog").await;
    let mut found = all(&database, "newest").await;
    found.sort_by_key(|it| it.get_str("_id").unwrap().to_owned());
    let values: Vec<i32> = found.iter().map(|it| it.get_i32("value").unwrap()).collect();
    assert_eq!(values, (0..10).map(|key| EVENTS as i32 - 10 + key).collect::<Vec<_>>());
    assert!(found.iter().all(|it| it.get_i64("_v").unwrap() > EVENTS as i64 - 10));
}
