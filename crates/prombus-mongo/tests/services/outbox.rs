//! Tests the outbox.

use crate::servers::{DropDatabase, fresh_database, open_database, shared_url};
use crate::setup::{all, database, payloads, until};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use prombus::outbox::{FailedRow, OutboxDrainer, OutboxRecord, OutboxStore as _};
use prombus::{Bus, Uuid};
use prombus_mongo::{MongoOutbox, mongodb};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn record(number: u64) -> OutboxRecord {
    OutboxRecord::new(Uuid::from_u128(u128::from(number)), "orders", &number).unwrap()
}

async fn statuses(database: &Database) -> Vec<String> {
    let rows = all(database, "outbox").await;
    rows.iter().map(|row| row.get_str("status").unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_stored_if_its_transaction_commits() {
    let (database, _drop) = database().await;
    let outbox = MongoOutbox::open(&database).await.unwrap();
    let orders = database.collection::<Document>("orders");
    orders.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut session = database.client().start_session().await.unwrap();
    for (number, is_committed) in [(1, true), (2, false)] {
        session.start_transaction().await.unwrap();
        orders.insert_one(doc! { "_id": number as i64 }).session(&mut session).await.unwrap();
        outbox.add(&record(number), Some(&mut session)).await.unwrap();
        if is_committed {
            session.commit_transaction().await.unwrap();
        } else {
            session.abort_transaction().await.unwrap();
        }
    }
    let bus = Bus::memory();
    let drained = OutboxDrainer::new(Arc::new(outbox), Arc::new(bus.clone())).drain().await.unwrap();
    assert_eq!(drained.published, 1);
    assert_eq!(payloads(&bus, "orders").await, ["1"]);
    let rows = all(&database, "outbox").await;
    assert_eq!((rows.len(), rows[0].get_str("status").unwrap()), (1, "sent"));
    assert!(rows[0].get_datetime("expireAt").unwrap() > rows[0].get_datetime("sent_at").unwrap());
    assert!(!rows[0].contains_key("claim") && !rows[0].contains_key("worker"), "{}", rows[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_as_they_were_added() {
    let (database, _drop) = database().await;
    let outbox = MongoOutbox::open(&database).await.unwrap();
    let exact = "{\"z\":1.50,\"a\":[12345678901234567890,\"\\u0000\"]}";
    let mut written = OutboxRecord::new(Uuid::from_u128(7), "orders", &0).unwrap();
    written.payload = prombus::RawValue::from_string(exact.to_owned()).unwrap();
    written.headers.insert("a.b$".to_owned(), "v".to_owned());
    written.key = Some("k".to_owned());
    written.ts = Some(5);
    outbox.add(&written, None).await.unwrap();
    // A row as a service in another language writes it.
    let by_hand =
        doc! { "id": "order-17", "topic": "orders", "payload": { "n": 7.0 }, "ts": 6.0, "status": "pending" };
    database.collection::<Document>("outbox").insert_one(by_hand).await.unwrap();
    let bus = Bus::memory();
    OutboxDrainer::new(Arc::new(outbox), Arc::new(bus.clone())).drain().await.unwrap();
    let topic = prombus::Topic::new("orders").unwrap();
    let page = bus.read_from(&topic, 1, prombus::PullLimit::default()).await.unwrap();
    let event = &page.events[0];
    assert_eq!((event.payload(), event.key(), event.ts()), (exact, Some("k"), 5));
    assert_eq!(event.id(), Uuid::from_u128(7));
    assert_eq!(event.record().unwrap().headers["a.b$"], "v");
    assert_eq!(
        (page.events[1].payload(), page.events[1].id()),
        ("{\"n\":7}", prombus_protocol::id_of_key("order-17"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_lost_changes_nothing() {
    let (database, _drop) = database().await;
    let outbox = MongoOutbox::open(&database).await.unwrap();
    outbox.add(&record(1), None).await.unwrap();
    let first = outbox.claim_batch("one", 10, 1).await.unwrap();
    assert_eq!(first.len(), 1);
    assert!(outbox.claim_batch("two", 10, 60_000).await.unwrap().is_empty(), "it is claimed");
    until("the lease ends", || async { outbox.requeue_expired().await.unwrap() == 1 }).await;
    let second = outbox.claim_batch("two", 10, 60_000).await.unwrap();
    assert_eq!(second.len(), 1);
    // All updates of the first worker are late.
    let row = first[0].row.clone();
    assert_eq!(outbox.mark_sent("one", std::slice::from_ref(&row)).await.unwrap(), 0);
    let failed = FailedRow { row: row.clone(), error: "late".to_owned(), is_permanent: true };
    let failed = outbox.mark_error("one", &[failed]).await.unwrap();
    assert_eq!((failed.dead.len(), failed.retried), (0, 0));
    outbox.release("one", std::slice::from_ref(&row), "late").await.unwrap();
    assert_eq!(statuses(&database).await, ["claimed"]);
    assert_eq!(outbox.mark_sent("two", &[row]).await.unwrap(), 1);
    assert_eq!(statuses(&database).await, ["sent"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_rows_are_retried_and_finally_given_up() {
    let (database, _drop) = database().await;
    let outbox = MongoOutbox::open(&database).await.unwrap().max_attempts(2);
    outbox.add(&record(1), None).await.unwrap();
    outbox.add(&OutboxRecord { topic: "no topic!".to_owned(), ..record(2) }, None).await.unwrap();
    let rows = database.collection::<Document>("outbox");
    rows.insert_one(doc! { "_id": 5, "topic": 7, "status": "pending" }).await.unwrap();
    for (round, status) in [(1, "error"), (2, "dead")] {
        until("the row is due", || async {
            let claimed = outbox.claim_batch("w", 1, 60_000).await.unwrap();
            let failed: Vec<FailedRow> = claimed
                .into_iter()
                .map(|it| FailedRow {
                    is_permanent: it.record.is_err(),
                    row: it.row,
                    error: "refused".to_owned(),
                })
                .collect();
            let is_mine = failed.iter().any(|it| it.row == record(1).id.to_string());
            outbox.mark_error("w", &failed).await.unwrap();
            is_mine
        })
        .await;
        let row = rows.find_one(doc! { "id": record(1).id.to_string() }).await.unwrap().unwrap();
        assert_eq!(row.get_str("status").unwrap(), status);
        assert_eq!(row.get_i32("attempts").unwrap(), round);
        assert_eq!(row.get_str("last_err").unwrap(), "refused");
        assert_eq!(row.contains_key("lease_until"), status == "error");
    }
    let bus = Bus::memory();
    let counts = OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus)).drain().await.unwrap();
    assert_eq!(counts.published, 0);
    let counts = outbox.counts().await.unwrap();
    assert_eq!(
        counts.get("dead").copied().unwrap_or(0) + counts.get("error").copied().unwrap_or(0),
        3,
        "{counts:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_drainers_share_the_work_and_publish_each_row_once() {
    let (database, _drop) = database().await;
    let outbox = MongoOutbox::open(&database).await.unwrap();
    let bus = Bus::memory();
    let drainers: Vec<_> = (0..3)
        .map(|_| OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus.clone())).batch_size(50).spawn())
        .collect();
    for number in 0..1_000 {
        outbox.add(&record(number), None).await.unwrap();
    }
    until("all rows are sent", || async {
        outbox.counts().await.unwrap().get("sent").copied() == Some(1_000)
    })
    .await;
    let mut duplicates = 0;
    for drainer in drainers {
        duplicates += drainer.stop().await.duplicates;
    }
    let mut numbers: Vec<u64> =
        payloads(&bus, "orders").await.iter().map(|payload| payload.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
    assert_eq!(duplicates, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_stream_wakes_an_idle_drainer_and_polling_works_without_one() {
    for url in [crate::servers::shared_set_url(), shared_url()] {
        let name = fresh_database();
        let _drop = DropDatabase(url.to_owned(), name.clone());
        let database = open_database(url, &name).await;
        let outbox = MongoOutbox::open(&database).await.unwrap();
        let bus = Bus::memory();
        // With polling alone, this interval would be too long.
        let interval = if url == shared_url() { Duration::from_millis(20) } else { Duration::from_secs(30) };
        let drainer =
            OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(bus.clone())).interval(interval).spawn();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let started = Instant::now();
        outbox.add(&record(1), None).await.unwrap();
        until("it is published", || async { drainer.counts().published == 1 }).await;
        println!("published {} ms after it was added", started.elapsed().as_millis());
        assert!(started.elapsed() < Duration::from_secs(10));
        drainer.stop().await;
    }
}
