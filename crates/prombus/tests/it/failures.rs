//! Failures of handlers are visible: by callbacks, as the last error, and on stderr.

use prombus::consume::dedupe::MemoryDedupe;
use prombus::consume::exactly_once::SqliteExactlyOnce;
use prombus::outbox::{OutboxDrainer, OutboxRecord, SqliteOutbox};
use prombus::{AfterFailure, Bus, HandlerFailure, Uuid};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);

/// A callback, and the failures that it received.
fn listener() -> (impl Fn(&HandlerFailure) + Send + Sync + 'static, mpsc::UnboundedReceiver<HandlerFailure>) {
    let (sender, failures) = mpsc::unbounded_channel();
    (move |failure: &HandlerFailure| sender.send(failure.clone()).expect("the test listens"), failures)
}

async fn next(failures: &mut mpsc::UnboundedReceiver<HandlerFailure>) -> HandlerFailure {
    timeout(SOON, failures.recv()).await.expect("a failure is reported").expect("the handler exists")
}

/// The seq, the attempt, the error and what happens next.
fn parts(failure: &HandlerFailure) -> (u64, u32, &str, AfterFailure) {
    let event = failure.event.as_ref().expect("it concerns an event");
    (event.seq, event.attempt, &failure.error, failure.next)
}

#[tokio::test]
async fn every_failed_attempt_is_reported_with_what_happens_next() {
    let bus = Bus::memory();
    let id = bus.publish("orders", &7).await.expect("it publishes").id;
    let (callback, mut failures) = listener();
    let orders = bus.subscribe("orders", "billing").from_earliest().max_attempts(2).on_error(callback);
    let orders = orders.handler(|_, context| async move {
        if context.attempt == 1 {
            return Err("no such customer");
        }
        panic!("a bug")
    });
    let orders = orders.await.expect("it subscribes");
    let first = next(&mut failures).await;
    assert_eq!(parts(&first), (1, 1, "no such customer", AfterFailure::Retry));
    let event = first.event.expect("an event");
    assert_eq!((event.topic.as_str(), event.id, event.max_attempts), ("orders", id, 2));
    let second = next(&mut failures).await;
    let panicked = "the handler panicked: a bug";
    assert_eq!(parts(&second), (1, 2, panicked, AfterFailure::DeadLetter));
    // A callback that is set later gets the last failure at once.
    let (callback, mut late) = listener();
    orders.on_error(callback);
    assert_eq!(late.try_recv().ok(), Some(second.clone()));
    // The event is a dead letter, so there is nothing more to fail.
    timeout(SOON, bus.wait_idle("billing")).await.expect("in time").expect("idle");
    assert_eq!(orders.last_error(), Some(second));
    assert!(failures.try_recv().is_err() && late.try_recv().is_err());
    orders.unsubscribe().await.expect("it leaves");
}

#[tokio::test]
async fn a_handler_that_succeeds_has_no_last_error() {
    let bus = Bus::memory();
    let orders = bus.subscribe("orders", "billing").handler(|_, _| async { Ok::<(), String>(()) });
    let orders = orders.await.expect("it subscribes");
    bus.publish("orders", &7).await.expect("it publishes");
    timeout(SOON, bus.wait_idle("billing")).await.expect("in time").expect("idle");
    assert_eq!(orders.last_error(), None);
}

#[tokio::test]
async fn a_deleted_group_stops_its_handler_and_says_so() {
    let bus = Bus::memory();
    let (callback, mut failures) = listener();
    let orders = bus.subscribe("orders", "billing").handler(|_, _| async { Ok::<(), String>(()) });
    let orders = orders.await.expect("it subscribes");
    orders.on_error(callback);
    bus.delete_group("orders", "billing").await.expect("it deletes");
    let failure = next(&mut failures).await;
    assert_eq!((failure.event, failure.next), (None, AfterFailure::Stop));
    assert_eq!(failure.error, "the group was deleted");
}

#[tokio::test]
async fn exactly_once_handlers_report_failures_too() {
    let bus = Bus::memory();
    let (callback, mut failures) = listener();
    let marked = bus.subscribe("orders", "marked").max_attempts(1).on_error(callback);
    let marked = marked.exactly_once(Arc::new(MemoryDedupe::new())).handler(|_, _| async { Err("boom") });
    let marked = marked.await.expect("it subscribes");
    let folder = crate::folder::Folder::new();
    let once = SqliteExactlyOnce::open(folder.path().join("ledger.db")).expect("it opens");
    let ledger = bus.subscribe("orders", "ledger").max_attempts(1);
    let ledger = once.handler(ledger, |_, _| Err::<(), _>("bang")).await.expect("it subscribes");
    let (callback, mut ledger_failures) = listener();
    ledger.on_error(callback);
    bus.publish("orders", &7).await.expect("it publishes");
    assert_eq!(parts(&next(&mut failures).await), (1, 1, "boom", AfterFailure::DeadLetter));
    assert_eq!(parts(&next(&mut ledger_failures).await), (1, 1, "bang", AfterFailure::DeadLetter));
    assert!(marked.last_error().is_some() && ledger.last_error().is_some());
}

#[tokio::test]
async fn a_drainer_reports_rows_that_are_given_up() {
    let folder = crate::folder::Folder::new();
    let path = folder.path().join("shop.db");
    let outbox = SqliteOutbox::open(&path).expect("it opens");
    let shop = rusqlite::Connection::open(&path).expect("it opens");
    let id = Uuid::from_u128(17);
    let bad = OutboxRecord::new(id, "not a topic", &7).expect("a record");
    SqliteOutbox::add(&shop, &bad).expect("it is added");
    let (callback, mut failures) = listener();
    let drainer = OutboxDrainer::new(Arc::new(outbox), Arc::new(Bus::memory())).on_error(callback).spawn();
    let failure = next(&mut failures).await;
    assert_eq!((failure.row, failure.next), (Some(id.to_string()), AfterFailure::DeadLetter));
    assert!(failure.error.contains("topic name has"), "{}", failure.error);
    assert_eq!(drainer.last_error().map(|last| last.error), Some(failure.error));
    assert_eq!(drainer.stop().await.dead, 1);
}

const CHILD: &str = "PROMBUS_FAILURES_CHILD";

/// Not a test: a program without a tracing subscriber, whose handlers fail.
#[test]
fn the_program_without_a_log() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bus = Bus::memory();
        let fail = |_, _| async { Err::<(), _>("no such customer") };
        let quiet = bus.subscribe("orders", "quiet").max_attempts(1).on_error(|_| {}).handler(fail);
        let _quiet = quiet.await.expect("it subscribes");
        let _loud = bus.subscribe("orders", "loud").max_attempts(1).handler(fail).await.expect("subscribes");
        for number in 0..10 {
            bus.publish("orders", &number).await.expect("it publishes");
        }
        bus.wait_idle("loud").await.expect("idle");
        bus.wait_idle("quiet").await.expect("idle");
    });
}

#[test]
fn without_a_log_and_a_callback_the_first_failure_is_one_line_on_stderr() {
    let program = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "failures::the_program_without_a_log", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .output()
        .expect("it runs");
    assert!(program.status.success());
    let text = String::from_utf8_lossy(&program.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("prombus: ")).collect();
    let [line] = lines[..] else { panic!("one line is expected: {text}") };
    let expected = "prombus: handler of orders in group loud: orders seq 1 (attempt 1 of 1): no such customer; it becomes a dead letter. ";
    assert!(line.starts_with(expected) && line.contains("on_error"), "{line}");
}
