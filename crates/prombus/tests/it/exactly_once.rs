//! Handlers that are not called again for events that they have handled.

use crate::folder::Folder;
use parking_lot::Mutex;
use prombus::consume::dedupe::{DedupeError, DedupeStore, MemoryDedupe};
use prombus::consume::exactly_once::SqliteExactlyOnce;
use prombus::{BoxFuture, Bus, Clock, Event, ManualClock, Start, Uuid};
use rusqlite::{Connection, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Waits until a condition holds; the timeout is generous enough for a loaded machine.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within ten seconds: {what}");
}

async fn lag(bus: &Bus, topic: &str, group: &str) -> u64 {
    let group = bus.backend().group(topic, group).await.expect("succeeds");
    group.expect("the group exists").lag
}

async fn publish_numbers(bus: &Bus, topic: &str, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        bus.publish(topic, &number).await.expect("it publishes");
    }
}

/// Payloads for which a handler call succeeded.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<u64>>>);

impl Calls {
    fn add(&self, event: &Event) {
        self.0.lock().push(event.json().expect("a number"));
    }

    fn sorted(&self) -> Vec<u64> {
        let mut calls = self.0.lock().clone();
        calls.sort_unstable();
        calls
    }
}

#[tokio::test]
async fn a_replay_does_not_call_the_handler_again() {
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 1..=20).await;
    let calls = Calls::default();
    let sink = calls.clone();
    let store = Arc::new(MemoryDedupe::new());
    let handler = move |event: Event, _| {
        sink.add(&event);
        async { Ok::<(), String>(()) }
    };
    let subscribe = bus.subscribe("a", "g").from_earliest();
    subscribe.exactly_once(store).handler(handler).await.expect("it subscribes");
    until("all are handled", async || lag(&bus, "a", "g").await == 0).await;
    bus.seek("a", "g", Start::Earliest).await.expect("it seeks");
    until("all are settled again", async || lag(&bus, "a", "g").await == 0).await;
    assert_eq!(calls.sorted(), (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_handler_that_fails_or_panics_marks_nothing_and_is_called_again() {
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 1..=2).await;
    let calls = Calls::default();
    let (sink, tries) = (calls.clone(), AtomicU32::new(0));
    let handler = move |event: Event, context: prombus::DeliveryContext| {
        tries.fetch_add(1, Ordering::SeqCst);
        let sink = sink.clone();
        async move {
            match (context.attempt, event.seq()) {
                (1, 1) => Err("not yet"),
                (1, 2) => panic!("not at all"),
                _ => {
                    sink.add(&event);
                    Ok(())
                }
            }
        }
    };
    let subscribed = bus.subscribe("a", "g").from_earliest().exactly_once(Arc::new(MemoryDedupe::new()));
    subscribed.handler(handler).await.expect("it subscribes");
    until("both are handled", async || lag(&bus, "a", "g").await == 0).await;
    assert_eq!(calls.sorted(), [1, 2]);
}

#[tokio::test]
async fn an_event_whose_lease_ends_while_it_is_handled_is_handled_once() {
    let bus = Bus::memory();
    let calls = Calls::default();
    let sink = calls.clone();
    let handler = move |event: Event, _| {
        let sink = sink.clone();
        async move {
            // Longer than the lease.
            tokio::time::sleep(Duration::from_millis(1_600)).await;
            sink.add(&event);
            Ok::<(), String>(())
        }
    };
    let subscribe = bus.subscribe("a", "g").from_earliest().ack_timeout(Duration::from_secs(1));
    let store = Arc::new(MemoryDedupe::new());
    let running = subscribe.exactly_once(store).handler(handler).await.expect("it subscribes");
    publish_numbers(&bus, "a", 1..=1).await;
    until("it is handled", async || lag(&bus, "a", "g").await == 0).await;
    let group = bus.backend().group("a", "g").await.expect("succeeds").expect("it is there");
    assert!(group.counters.redelivered_expired > 0, "the lease did not expire: {:?}", group.counters);
    // Waits for the second call, which started when the lease expired.
    running.unsubscribe().await.expect("it leaves");
    assert_eq!(calls.sorted(), [1]);
}

#[tokio::test]
async fn groups_of_one_name_on_two_subscriptions_do_not_share_marks_and_topics_do_not_share_ids() {
    let bus = Bus::memory();
    for topic in ["a.x", "a.y"] {
        bus.publish(topic, &1).id(Uuid::from_u128(1)).await.expect("it publishes");
    }
    let store = Arc::new(MemoryDedupe::new());
    let calls = Calls::default();
    for subscription in ["a.*", "a.x"] {
        let sink = calls.clone();
        let handler = move |event: Event, _| {
            sink.add(&event);
            async { Ok::<(), String>(()) }
        };
        let subscribe = bus.subscribe(subscription, "g").from_earliest();
        subscribe.exactly_once(Arc::clone(&store) as _).handler(handler).await.expect("it subscribes");
        until("all are handled", async || lag(&bus, subscription, "g").await == 0).await;
    }
    assert_eq!(calls.sorted(), [1, 1, 1]);
}

/// A store whose first mark fails.
struct Failing(MemoryDedupe, AtomicU32);

impl DedupeStore for Failing {
    fn seen<'a>(&'a self, t: &'a str, g: &'a str, id: Uuid) -> BoxFuture<'a, Result<bool, DedupeError>> {
        self.0.seen(t, g, id)
    }

    fn mark<'a>(
        &'a self,
        t: &'a str,
        g: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>> {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            return Box::pin(async { Err(DedupeError::Other("the mark failed".to_owned())) });
        }
        self.0.mark(t, g, id, ttl_ms)
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_marked_is_not_acked() {
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 1..=1).await;
    let calls = Calls::default();
    let sink = calls.clone();
    let handler = move |event: Event, _| {
        sink.add(&event);
        async { Ok::<(), String>(()) }
    };
    let store = Arc::new(Failing(MemoryDedupe::new(), AtomicU32::new(0)));
    let subscribed = bus.subscribe("a", "g").from_earliest().exactly_once(Arc::clone(&store) as _);
    subscribed.handler(handler).await.expect("it subscribes");
    until("it is handled", async || lag(&bus, "a", "g").await == 0).await;
    assert_eq!(store.1.load(Ordering::SeqCst), 2, "the mark was not tried again");
    assert_eq!(calls.sorted(), [1, 1], "this form guarantees only at-least-once");
}

/// A ledger in a folder, and a separate connection to inspect it.
fn ledger() -> (SqliteExactlyOnce, Connection, Folder) {
    let folder = Folder::new();
    let path = folder.path().join("ledger.db");
    let once = SqliteExactlyOnce::open(&path).expect("it opens");
    once.setup("CREATE TABLE ledger (amount INTEGER)").expect("a table");
    (once, Connection::open(path).expect("it opens"), folder)
}

fn amounts(connection: &Connection) -> Vec<u64> {
    let mut statement = connection.prepare("SELECT amount FROM ledger ORDER BY rowid").expect("it is SQL");
    let rows = statement.query_map([], |row| row.get::<_, i64>(0)).expect("it runs");
    rows.map(|amount| amount.expect("a number").cast_unsigned()).collect()
}

fn marks(connection: &Connection) -> i64 {
    connection.query_row("SELECT count(*) FROM prombus_dedupe", [], |row| row.get(0)).expect("it counts")
}

fn add(event: &Event, transaction: &Transaction<'_>) -> Result<(), String> {
    let amount: i64 = event.json().map_err(|error| error.to_string())?;
    let added = transaction.execute("INSERT INTO ledger (amount) VALUES (?1)", [amount]);
    added.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn effects_in_sqlite_happen_once_and_in_order_also_after_a_replay() {
    for events_per_transaction in [1, 7] {
        let (once, connection, _folder) = ledger();
        let once = once.events_per_transaction(events_per_transaction);
        let bus = Bus::memory();
        publish_numbers(&bus, "a", 1..=50).await;
        let running =
            once.handler(bus.subscribe("a", "g").from_earliest(), add).await.expect("it subscribes");
        until("all are handled", async || lag(&bus, "a", "g").await == 0).await;
        bus.seek("a", "g", Start::Earliest).await.expect("it seeks");
        until("all are settled again", async || lag(&bus, "a", "g").await == 0).await;
        assert_eq!(amounts(&connection), (1..=50).collect::<Vec<_>>());
        assert_eq!(marks(&connection), 50);
        running.unsubscribe().await.expect("it leaves");
    }
}

#[tokio::test]
async fn a_failed_handler_leaves_no_trace_and_other_events_are_handled() {
    for events_per_transaction in [1, 10] {
        let (once, connection, _folder) = ledger();
        let once = once.events_per_transaction(events_per_transaction);
        let bus = Bus::memory();
        publish_numbers(&bus, "a", 1..=10).await;
        let tries = Arc::new(Mutex::new(std::collections::HashMap::<u64, u32>::new()));
        let counts = Arc::clone(&tries);
        let handler = move |event: &Event, transaction: &Transaction<'_>| {
            let first = {
                let mut counts = counts.lock();
                let count = counts.entry(event.seq()).or_default();
                *count += 1;
                *count == 1
            };
            add(event, transaction)?;
            match event.seq() {
                3 if first => Err("after the write".to_owned()),
                5 if first => panic!("after the write"),
                7 if first => {
                    transaction.execute_batch("ROLLBACK").map_err(|error| error.to_string())?;
                    Ok(())
                }
                9 => Err("every time".to_owned()),
                _ => Ok(()),
            }
        };
        let subscribe = bus.subscribe("a", "g").from_earliest().max_attempts(2);
        let running = once.handler(subscribe, handler).await.expect("it subscribes");
        until("all are settled", async || lag(&bus, "a", "g").await == 0).await;
        let mut amounts = amounts(&connection);
        amounts.sort_unstable();
        assert_eq!(amounts, [1, 2, 3, 4, 5, 6, 7, 8, 10]);
        assert_eq!(marks(&connection), 9);
        // The event that always fails is a dead letter.
        assert!(bus.topics().await.expect("it lists").iter().any(|topic| topic.topic == *"dlq.a"));
        running.unsubscribe().await.expect("it leaves");
    }
}

#[tokio::test]
async fn a_database_that_is_locked_for_a_while_costs_no_attempts() {
    let (once, connection, _folder) = ledger();
    once.setup("PRAGMA busy_timeout = 1").expect("a setting");
    let bus = Bus::memory();
    connection.execute_batch("BEGIN IMMEDIATE").expect("it is locked");
    let subscribe = bus.subscribe("a", "g").from_earliest().max_attempts(1);
    let _running = once.handler(subscribe, add).await.expect("it subscribes");
    publish_numbers(&bus, "a", 1..=3).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    connection.execute_batch("COMMIT").expect("it is free");
    until("all are handled", async || lag(&bus, "a", "g").await == 0).await;
    assert_eq!(amounts(&connection), [1, 2, 3]);
}

#[tokio::test]
async fn an_expired_mark_is_kept_while_its_event_may_be_redelivered() {
    let (once, connection, _folder) = ledger();
    let clock = ManualClock::new(1_700_000_000_000);
    let once = once.ttl_ms(1_000).clock(Arc::new(clock.clone()) as Arc<dyn Clock>);
    let bus = Bus::memory();
    publish_numbers(&bus, "a", 1..=10).await;
    // The first event is never settled, so the floor stays below the others.
    let handler = |event: &Event, transaction: &Transaction<'_>| match event.seq() {
        1 => Err("never".to_owned()),
        _ => add(event, transaction),
    };
    let subscribe = || bus.subscribe("a", "g").from_earliest().max_attempts(1_000);
    let running = once.handler(subscribe(), handler).await.expect("it subscribes");
    until("the others are handled", async || amounts(&connection).len() == 9).await;
    running.unsubscribe().await.expect("it leaves");
    clock.advance_ms(1_000_000);
    // A handler deletes expired marks when it starts.
    let running = once.handler(subscribe(), handler).await.expect("it subscribes");
    publish_numbers(&bus, "a", 11..=11).await;
    until("one more is handled", async || amounts(&connection).len() == 10).await;
    running.unsubscribe().await.expect("it leaves");
    assert_eq!(marks(&connection), 10, "marks of events above the floor must be kept");
    clock.advance_ms(1_000_000);
    let running = once.handler(subscribe(), add).await.expect("it subscribes");
    until("all are handled", async || lag(&bus, "a", "g").await == 0).await;
    running.unsubscribe().await.expect("it leaves");
    let running = once.handler(subscribe(), add).await.expect("it subscribes");
    publish_numbers(&bus, "a", 12..=12).await;
    until("old marks are purged", async || marks(&connection) <= 2).await;
    running.unsubscribe().await.expect("it leaves");
}
