//! Kills the primary while all helpers run.

use crate::projectors::{Totals, read_sums, sums};
use crate::servers::{ReplicaSet, open_database};
use crate::setup::{all, payloads, publish_numbers, until};
use mongodb::bson::{Document, doc};
use prombus::outbox::{OutboxDrainer, OutboxRecord};
use prombus::{Bus, Uuid};
use prombus_mongo::{
    ChangelogOptions, ChangelogProjector, HandlerError, MongoExactlyOnce, MongoOutbox, MongoProjector,
    MongoProjectorOptions, mongodb,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EVENTS: u64 = 6_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_and_duplicates_nothing() {
    let mut set = ReplicaSet::start().await;
    let database = open_database(&set.url, "services").await;
    let ledger = database.collection::<Document>("ledger");
    for name in ["ledger", "totals", "newest"] {
        database.create_collection(name).await.unwrap();
    }
    let bus = Bus::memory();
    publish_numbers(&bus, "payments", 0..EVENTS).await;

    let outbox = MongoOutbox::open(&database).await.unwrap();
    let drainer = OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus.clone()));
    let drainer = drainer.lease_ms(2_000).interval(Duration::from_millis(50)).spawn();
    let handled = Arc::new(AtomicU64::new(0));
    let once = MongoExactlyOnce::open(&database).await.unwrap().events_per_transaction(10);
    let subscribe = bus.subscribe("payments", "ledger").from_earliest().max_attempts(1_000);
    let (entries, counter) = (ledger.clone(), Arc::clone(&handled));
    let handler = once.handler(subscribe, move |event, session| {
        let (ledger, counter) = (entries.clone(), Arc::clone(&counter));
        Box::pin(async move {
            ledger.insert_one(doc! { "seq": event.seq() as i64 }).session(session).await?;
            counter.fetch_add(1, Ordering::SeqCst);
            Ok::<(), HandlerError>(())
        })
    });
    let handler = handler.await.unwrap();
    let options =
        MongoProjectorOptions { batch_size: 10, ..MongoProjectorOptions::group("totals").topic("payments") };
    let totals = Totals(database.collection("totals"));
    let projector = MongoProjector::open(&bus, &database, options, totals).await.unwrap().spawn();
    let mut options = ChangelogOptions::group("newest").topic("payments").collection("newest");
    options.projector.batch_size = 10;
    let changelog = ChangelogProjector::open(&bus, &database, options).await.unwrap().spawn();

    // Rows whose response was lost may or may not be stored; their ids show it.
    let added = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (rows, is_over) = (Arc::clone(&added), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let (adding, over) = (outbox.clone(), Arc::clone(&is_over));
    let adder = tokio::spawn(async move {
        while !over.load(Ordering::SeqCst) {
            let id = Uuid::new_v4();
            let record = OutboxRecord::new(id, "orders", &id.to_string()).unwrap();
            if adding.add(&record, None).await.is_ok() {
                rows.lock().push(id.to_string());
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(800)).await;
    let primary = set.primary().await;
    set.members[primary].kill();
    let killed = Instant::now();
    let before = (drainer.counts().published, handled.load(Ordering::SeqCst));
    let positions = (projector.figures().position, changelog.figures().position);
    assert!(
        positions.0 < EVENTS && before.1 < EVENTS,
        "everything was done before the failover: {positions:?} {before:?}"
    );
    let mut outages = [Duration::ZERO; 4];
    while outages.contains(&Duration::ZERO) {
        let is_again = [
            drainer.counts().published > before.0 + 200,
            handled.load(Ordering::SeqCst) > (before.1 + 100).min(EVENTS - 1),
            projector.figures().position > (positions.0 + 50).min(EVENTS - 1),
            changelog.figures().position > (positions.1 + 50).min(EVENTS - 1),
        ];
        for (outage, is_again) in outages.iter_mut().zip(is_again) {
            if is_again && outage.is_zero() {
                *outage = killed.elapsed();
            }
        }
        assert!(killed.elapsed() < Duration::from_secs(180), "no progress: {is_again:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!(
        "outages in ms, outbox, exactly once, projector, changelog: {:?}",
        outages.map(|it| it.as_millis())
    );
    set.members[primary].restart();
    is_over.store(true, Ordering::SeqCst);
    adder.await.unwrap();
    until("everything is done", || async {
        let floor = bus.group("payments", "ledger").await.unwrap().unwrap().topics[0].floor;
        let is_sent = outbox.counts().await.is_ok_and(|it| it.keys().all(|status| status == "sent"));
        floor == EVENTS
            && projector.figures().position == EVENTS
            && changelog.figures().position == EVENTS
            && is_sent
    })
    .await;
    drainer.stop().await;
    handler.unsubscribe().await.unwrap();
    projector.stop().await.unwrap();
    changelog.stop().await.unwrap();

    let mut seqs: Vec<i64> =
        all(&database, "ledger").await.iter().map(|it| it.get_i64("seq").unwrap()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=EVENTS as i64).collect::<Vec<_>>(), "exactly once");
    assert_eq!(read_sums(&database.collection("totals")).await, sums(EVENTS), "projector");
    let newest = all(&database, "newest").await;
    assert!(newest.len() == 10 && newest.iter().all(|it| it.get_i64("_v").unwrap() > EVENTS as i64 - 10));
    let mut stored: Vec<String> =
        all(&database, "outbox").await.iter().map(|it| it.get_str("id").unwrap().to_owned()).collect();
    let mut events: Vec<String> =
        payloads(&bus, "orders").await.iter().map(|it| it.trim_matches('"').to_owned()).collect();
    stored.sort();
    events.sort();
    assert_eq!(stored, events, "outbox");
    assert!(added.lock().iter().all(|id| events.binary_search(id).is_ok()), "a row that was added is lost");
}
