//! The outbox in SQLite and its drainer, with a bus in memory.

use crate::folder::Folder;
use prombus::outbox::{ClaimedRow, FailedRow, OutboxDrainer, OutboxRecord, OutboxStore, SqliteOutbox};
use prombus::{Bus, Clock, Event, ManualClock, PullLimit, Topic, Uuid};
use rusqlite::Connection;
use std::sync::Arc;
use std::time::Duration;

const START_MS: i64 = 1_700_000_000_000;

struct Rig {
    outbox: SqliteOutbox,
    /// The service's own connection.
    service: Connection,
    clock: ManualClock,
    folder: Folder,
}

impl Rig {
    fn new() -> Self {
        let folder = Folder::new();
        let clock = ManualClock::new(START_MS);
        let outbox = SqliteOutbox::open(folder.path().join("shop.db")).expect("it opens");
        let outbox = outbox.clock(Arc::new(clock.clone()) as Arc<dyn Clock>);
        let service = Connection::open(folder.path().join("shop.db")).expect("it opens");
        Self { outbox, service, clock, folder }
    }

    /// Adds a row with plain SQL, as a program in another language would.
    fn insert(&self, id: &str, topic: &str, payload: &str) {
        let sql = "INSERT INTO outbox (id, topic, payload) VALUES (?1, ?2, ?3)";
        self.service.execute(sql, [id, topic, payload]).expect("it inserts");
    }

    fn drainer(&self, bus: &Bus) -> OutboxDrainer {
        OutboxDrainer::new(Arc::new(self.outbox.clone()), Arc::new(bus.clone()))
    }

    /// Status, attempts and last error of a row.
    fn row(&self, id: &str) -> (String, i64, Option<String>) {
        let sql = "SELECT status, attempts, last_err FROM outbox WHERE id = ?1";
        let row = self.service.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        row.expect("the row is there")
    }

    fn rows(&self) -> i64 {
        self.service.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).expect("it counts")
    }

    async fn claim(&self, worker: &str, rows: u32) -> Vec<String> {
        let claimed = self.outbox.claim_batch(worker, rows, 1_000).await.expect("it claims");
        claimed.into_iter().map(|row| row.row).collect()
    }
}

async fn events(bus: &Bus, topic: &str) -> Vec<Event> {
    let topic = Topic::new(topic).expect("a topic");
    bus.read_from(&topic, 1, PullLimit::default()).await.expect("it reads").events
}

async fn payloads(bus: &Bus, topic: &str) -> Vec<String> {
    events(bus, topic).await.iter().map(|event| event.payload().to_owned()).collect()
}

#[tokio::test]
async fn committed_rows_are_published_with_all_fields_and_rolled_back_rows_are_not() {
    let (mut rig, bus) = (Rig::new(), Bus::memory());
    let id = Uuid::from_u128(17);
    let mut record = OutboxRecord::new(id, "orders", &serde_json::json!({"item": 7})).expect("a record");
    record.headers.insert("tenant".to_owned(), "blue \"1\"".to_owned());
    record.key = Some("customer-1".to_owned());
    record.ts = Some(1_234);
    let transaction = rig.service.transaction().expect("it begins");
    SqliteOutbox::add(&transaction, &record).expect("it is added");
    transaction.commit().expect("it commits");
    let transaction = rig.service.transaction().expect("it begins");
    let other = OutboxRecord::new(Uuid::from_u128(18), "orders", "never").expect("a record");
    SqliteOutbox::add(&transaction, &other).expect("it is added");
    drop(transaction);

    let counts = rig.drainer(&bus).drain().await.expect("it drains");
    assert_eq!((counts.published, counts.duplicates, counts.errors), (1, 0, 0));
    let events = events(&bus, "orders").await;
    assert_eq!(events.len(), 1);
    let record = events[0].record().expect("a record");
    assert_eq!((record.id, record.ts, record.key.as_deref()), (id, 1_234, Some("customer-1")));
    assert_eq!(record.payload.get(), r#"{"item":7}"#);
    assert_eq!(events[0].header("tenant").as_deref(), Some("blue \"1\""));
    assert_eq!(rig.row(&id.to_string()).0, "sent");
}

#[tokio::test]
async fn id_topic_and_payload_suffice_and_an_id_that_is_not_a_uuid_is_hashed_as_over_http() {
    let (rig, bus) = (Rig::new(), Bus::memory());
    rig.insert("order 17", "orders", "{ \"item\": 7 }");
    rig.drainer(&bus).drain().await.expect("it drains");
    let events = events(&bus, "orders").await;
    assert_eq!(events[0].id().to_string(), "4769d724-0b0d-510e-bc9b-5cca29704ade");
    let now = prombus::SystemClock::default().wall_ms();
    assert!((now - events[0].ts()).abs() < 60_000, "the time of the insert: {}", events[0].ts());
}

#[tokio::test]
async fn invalid_rows_are_given_up_and_the_others_are_published() {
    let (rig, bus) = (Rig::new(), Bus::builder().max_payload_bytes(100).memory().expect("a bus"));
    rig.insert("not-json", "orders", "{item: 7}");
    rig.insert("good-1", "orders", "1");
    rig.insert("bad-topic", "orders with spaces", "1");
    rig.insert("too-large", "orders", &format!("\"{}\"", "x".repeat(200)));
    rig.insert("too-deep", "orders", &format!("{}{}", "[".repeat(200), "]".repeat(200)));
    rig.insert("bad-headers", "orders", "1");
    rig.insert("bad-key", "orders", "1");
    rig.insert("bad-ts", "orders", "1");
    rig.insert("good-2", "orders", "2");
    let change = |sql: &str| assert_eq!(rig.service.execute(sql, []).expect("it is SQL"), 1, "{sql}");
    change("UPDATE outbox SET headers = '[1]' WHERE id = 'bad-headers'");
    change("UPDATE outbox SET key = '' WHERE id = 'bad-key'");
    change("UPDATE outbox SET ts = 'yesterday' WHERE id = 'bad-ts'");
    change("INSERT INTO outbox (id, topic, payload) VALUES (CAST(x'ff41' AS TEXT), 'orders', '3')");
    change("INSERT INTO outbox (id, topic, payload) VALUES ('blob', 'orders', CAST('4' AS BLOB))");

    let counts = rig.drainer(&bus).drain().await.expect("it drains");
    assert_eq!((counts.published, counts.errors, counts.dead), (3, 7, 7));
    assert_eq!(payloads(&bus, "orders").await, ["1", "2", "4"]);
    for (id, why) in [
        ("not-json", "the payload is not JSON"),
        ("bad-topic", "topic name has ' '"),
        ("too-large", "at most 100 are allowed"),
        ("too-deep", "128"),
        ("bad-headers", "not a JSON object of strings"),
        ("bad-key", "\"key\" of 0 bytes"),
        ("bad-ts", "the ts is not an integer"),
    ] {
        let (status, _, error) = rig.row(id);
        assert_eq!(status, "dead", "{id}");
        assert!(error.as_deref().is_some_and(|error| error.contains(why)), "{id}: {error:?}");
    }
    let sql = "SELECT count(*) FROM outbox WHERE status = 'dead' AND last_err = 'the id is not UTF-8'";
    let unreadable_ids: i64 = rig.service.query_row(sql, [], |row| row.get(0)).expect("it counts");
    assert_eq!(unreadable_ids, 1);
    let refused =
        "INSERT INTO outbox (id, topic, payload) VALUES (x'00112233445566778899aabbccddeeff', 'a', '1')";
    assert!(rig.service.execute(refused, []).is_err(), "an id that is not text is refused by the table");
}

#[tokio::test]
async fn rows_of_a_topic_are_published_in_the_order_in_which_they_were_added() {
    let (rig, bus) = (Rig::new(), Bus::memory());
    // Neither ids nor times are in order.
    for number in 0..500 {
        rig.insert(
            &format!("{}", (number * 7_919) % 1_000),
            &format!("t{}", number % 3),
            &number.to_string(),
        );
    }
    rig.service.execute("UPDATE outbox SET ts = 1000000 - rowid", []).expect("it is SQL");
    let counts = rig.drainer(&bus).batch_size(7).drain().await.expect("it drains");
    assert_eq!(counts.published, 500);
    for topic in 0..3 {
        let numbers: Vec<String> = (0..500).filter(|n| n % 3 == topic).map(|n| n.to_string()).collect();
        assert_eq!(payloads(&bus, &format!("t{topic}")).await, numbers);
    }
}

#[tokio::test]
async fn a_row_belongs_to_one_worker_until_its_lease_ends() {
    let rig = Rig::new();
    for id in ["a", "b", "c"] {
        rig.insert(id, "orders", "1");
    }
    assert_eq!(rig.claim("one", 2).await, ["a", "b"]);
    assert_eq!(rig.claim("two", 10).await, ["c"]);
    rig.clock.advance_ms(999);
    assert_eq!(rig.outbox.requeue_expired().await.expect("succeeds"), 0);
    assert!(rig.claim("two", 10).await.is_empty());
    rig.clock.advance_ms(1);
    assert_eq!(rig.outbox.requeue_expired().await.expect("succeeds"), 3);
    assert_eq!(rig.claim("two", 2).await, ["a", "b"]);

    // The first worker's lease has expired: its calls change nothing.
    let rows = ["a".to_owned(), "b".to_owned()];
    assert_eq!(rig.outbox.mark_sent("one", &rows).await.expect("succeeds"), 0);
    let failed = FailedRow { row: "a".to_owned(), error: "boom".to_owned(), is_permanent: true };
    let became = rig.outbox.mark_error("one", &[failed]).await.expect("succeeds");
    assert_eq!((became.retried, became.dead.len()), (0, 0));
    rig.outbox.release("one", &rows, "gone").await.expect("succeeds");
    assert_eq!(rig.row("a"), ("claimed".to_owned(), 0, None));
    assert_eq!(rig.outbox.mark_sent("two", &rows).await.expect("succeeds"), 2);
    assert_eq!(rig.outbox.mark_sent("two", &rows).await.expect("succeeds"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_workers_never_get_the_same_row() {
    let rig = Rig::new();
    for number in 0..300 {
        rig.insert(&number.to_string(), "orders", "1");
    }
    let mut workers = Vec::new();
    for number in 0..4 {
        // One connection each, like separate processes.
        let outbox = SqliteOutbox::open(rig.folder.path().join("shop.db")).expect("it opens");
        let outbox = outbox.clock(Arc::new(rig.clock.clone()) as Arc<dyn Clock>);
        workers.push(tokio::spawn(async move {
            let mut rows = Vec::new();
            loop {
                let worker = format!("worker-{number}");
                let claimed = outbox.claim_batch(&worker, 5, 60_000).await.expect("it claims");
                if claimed.is_empty() {
                    return rows;
                }
                rows.extend(claimed.into_iter().map(|ClaimedRow { row, .. }| row));
            }
        }));
    }
    let mut rows = Vec::new();
    for worker in workers {
        rows.extend(worker.await.expect("it ends"));
    }
    rows.sort_unstable();
    let count = rows.len();
    rows.dedup();
    assert_eq!((count, rows.len()), (300, 300));
}

#[tokio::test]
async fn a_crash_between_publish_and_mark_creates_no_second_event() {
    let (rig, bus) = (Rig::new(), Bus::memory());
    rig.insert("order 17", "orders", "7");
    let claimed = rig.outbox.claim_batch("a worker that dies", 10, 1_000).await.expect("it claims");
    let record = claimed[0].record.as_ref().expect("a record");
    bus.publish_json(&record.topic, record.payload.get()).options(record.options()).await.expect("publishes");
    rig.clock.advance_ms(1_000);
    let counts = rig.drainer(&bus).drain().await.expect("it drains");
    assert_eq!((counts.published, counts.duplicates, counts.requeued), (0, 1, 1));
    assert_eq!(payloads(&bus, "orders").await, ["7"]);
    assert_eq!(rig.row("order 17").0, "sent");
}

#[tokio::test]
async fn a_failing_row_is_retried_after_a_backoff_and_given_up_after_the_last_attempt() {
    let rig = Rig::new();
    // The topic exceeds max_topics; that is retried, because an operator may raise the limit.
    let bus = Bus::builder().max_topics(1).memory().expect("a bus");
    bus.publish("orders", &1).await.expect("it publishes");
    rig.insert("1", "other", "1");
    rig.insert("2", "orders", "2");
    let drainer = rig.drainer(&bus);
    let mut waited_ms = 0;
    for attempt in 1..=10 {
        drainer.drain().await.expect("it drains");
        let (status, attempts, error) = rig.row("1");
        assert!(error.is_some_and(|error| error.contains("max_topics")));
        assert_eq!((status.as_str(), attempts), (if attempt < 10 { "error" } else { "dead" }, attempt));
        // It is not retried before its time.
        drainer.drain().await.expect("it drains");
        assert_eq!(rig.row("1").1, attempt);
        let sql = "SELECT next_attempt_ms FROM outbox WHERE id = '1'";
        let next: i64 = rig.service.query_row(sql, [], |row| row.get(0)).expect("it is there");
        if attempt < 10 {
            let backoff = next - rig.clock.wall_ms();
            let planned = (100_i64 << (attempt - 1)).min(30_000);
            assert!((planned * 7 / 10..=planned * 13 / 10).contains(&backoff), "{attempt}: {backoff} ms");
            rig.clock.advance_ms(backoff.cast_unsigned());
            waited_ms += backoff;
        }
    }
    assert_eq!(rig.row("2").0, "sent", "the other row is published");
    let counts = drainer.counts();
    assert_eq!((counts.published, counts.errors, counts.dead), (1, 10, 1));
    println!("{waited_ms} ms until it was given up");
}

#[tokio::test]
async fn an_unavailable_bus_costs_no_attempts() {
    let (rig, closed) = (Rig::new(), Bus::memory());
    closed.close().await.expect("it closes");
    rig.insert("1", "orders", "1");
    rig.insert("2", "orders", "2");
    let drainer = rig.drainer(&closed);
    for _ in 0..20 {
        assert!(drainer.drain().await.is_err());
    }
    assert_eq!(rig.row("1"), ("pending".to_owned(), 0, Some("the bus is closed".to_owned())));
    let bus = Bus::memory();
    rig.drainer(&bus).drain().await.expect("it drains");
    assert_eq!(payloads(&bus, "orders").await, ["1", "2"]);
}

#[tokio::test]
async fn sent_rows_are_kept_for_a_time_or_not_at_all() {
    let (mut rig, bus) = (Rig::new(), Bus::memory());
    rig.insert("1", "orders", "1");
    rig.drainer(&bus).drain().await.expect("it drains");
    rig.clock.advance_ms(24 * 3_600_000 - 1);
    assert_eq!(rig.outbox.purge_sent().await.expect("it purges"), 0);
    rig.clock.advance_ms(1);
    assert_eq!(rig.outbox.purge_sent().await.expect("it purges"), 1);
    assert_eq!(rig.rows(), 0);

    rig.outbox = rig.outbox.keep_sent_ms(0);
    rig.insert("2", "orders", "2");
    rig.insert("3", "orders", "not JSON");
    rig.drainer(&bus).drain().await.expect("it drains");
    assert_eq!(rig.rows(), 1, "the row that was given up stays");
    assert_eq!(payloads(&bus, "orders").await, ["1", "2"]);
}

#[tokio::test]
async fn a_drainer_in_the_background_finds_new_rows_and_stops_when_told() {
    let (rig, bus) = (Rig::new(), Bus::memory());
    let drainer = rig.drainer(&bus).interval(Duration::from_millis(5)).spawn();
    for number in 1..=20_u64 {
        rig.insert(&number.to_string(), "orders", &number.to_string());
        while drainer.counts().published < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let counts = drainer.stop().await;
    assert_eq!((counts.published, counts.errors), (20, 0));
    rig.insert("21", "orders", "21");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(rig.row("21").0, "pending");
}
