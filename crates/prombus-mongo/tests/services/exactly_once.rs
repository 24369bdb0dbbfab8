//! Marks, and handlers in transactions.

use crate::setup::{all, database, publish_numbers, until};
use mongodb::bson::{Document, doc};
use prombus::consume::dedupe::DedupeStore as _;
use prombus::{Bus, Uuid};
use prombus_mongo::{HandlerError, MongoDedupe, MongoExactlyOnce, mongodb};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[tokio::test(flavor = "multi_thread")]
async fn marks_expire_after_their_lifetime() {
    let (database, _drop) = database().await;
    let marks = MongoDedupe::open(&database).await.unwrap();
    let id = Uuid::from_u128(7);
    assert!(!marks.seen("a", "g", id).await.unwrap());
    marks.mark("a", "g", id, 60_000).await.unwrap();
    assert!(marks.seen("a", "g", id).await.unwrap());
    assert!(!marks.seen("a", "other", id).await.unwrap() && !marks.seen("b", "g", id).await.unwrap());
    let before = all(&database, "dedupe").await[0].clone();
    assert_eq!(before.get_str("_id").unwrap(), format!("a::g::{id}"));
    // A live mark is unchanged.
    marks.mark("a", "g", id, 120_000).await.unwrap();
    assert_eq!(all(&database, "dedupe").await[0], before);
    let short = Uuid::from_u128(8);
    marks.mark("a", "g", short, 1).await.unwrap();
    until("it expires", || async { !marks.seen("a", "g", short).await.unwrap() }).await;
    marks.mark("a", "g", short, 60_000).await.unwrap();
    assert!(marks.seen("a", "g", short).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_keep_a_handler_from_being_called_again() {
    let (database, _drop) = database().await;
    let marks = Arc::new(MongoDedupe::open(&database).await.unwrap());
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 0..20).await;
    let calls = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let counter = Arc::clone(&calls);
        let subscribe = bus.subscribe("a", "g").from_earliest();
        let handler = subscribe.exactly_once(marks.clone()).handler(move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Ok::<(), String>(()) }
        });
        let handler = handler.await.unwrap();
        until("all are settled", || async {
            bus.group("a", "g").await.unwrap().is_some_and(|group| group.topics[0].floor == 20)
        })
        .await;
        handler.unsubscribe().await.unwrap();
        bus.seek("a", "g", prombus::Start::Earliest).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_writes_of_a_handler_and_the_mark_commit_together() {
    for per_transaction in [1, 10] {
        let (database, _drop) = database().await;
        let once = MongoExactlyOnce::open(&database).await.unwrap().events_per_transaction(per_transaction);
        let ledger = database.collection::<Document>("ledger");
        ledger.insert_one(doc! { "_id": "total", "sum": 0_i64 }).await.unwrap();
        let bus = Bus::memory();
        publish_numbers(&bus, "a", 1..51).await;
        let calls = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&calls);
        let entries = ledger.clone();
        let subscribe = bus.subscribe("a", "g").from_earliest().max_attempts(100);
        let handler = once.handler(subscribe, move |event, session| {
            let (ledger, counter) = (entries.clone(), Arc::clone(&counter));
            Box::pin(async move {
                let number: i64 = event.json()?;
                ledger.insert_one(doc! { "_id": number }).session(&mut *session).await?;
                let add = doc! { "$inc": { "sum": number } };
                ledger.update_one(doc! { "_id": "total" }, add).session(session).await?;
                // A handler that fails has written too, and its writes must be rolled back.
                match counter.fetch_add(1, Ordering::SeqCst) % 7 {
                    3 => Err("not this time".into()),
                    5 => panic!("not this time"),
                    _ => Ok::<(), HandlerError>(()),
                }
            })
        });
        let handler = handler.await.unwrap();
        until("all are settled", || async {
            bus.group("a", "g").await.unwrap().is_some_and(|group| group.topics[0].floor == 50)
        })
        .await;
        bus.seek("a", "g", prombus::Start::Earliest).await.unwrap();
        let before = calls.load(Ordering::SeqCst);
        until("all are settled again", || async {
            bus.group("a", "g").await.unwrap().is_some_and(|group| group.topics[0].floor == 50)
        })
        .await;
        assert_eq!(calls.load(Ordering::SeqCst), before, "an event was handled twice");
        assert!(before > 50, "some events were retried");
        handler.unsubscribe().await.unwrap();
        let total = ledger.find_one(doc! { "_id": "total" }).await.unwrap().unwrap();
        assert_eq!(total.get_i64("sum").unwrap(), 51 * 25);
        assert_eq!(ledger.count_documents(doc! {}).await.unwrap(), 51);
        assert_eq!(all(&database, "exactly_once").await.len(), 50);
    }
}
