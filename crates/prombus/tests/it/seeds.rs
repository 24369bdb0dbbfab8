//! The two tests of the original sketch.

use parking_lot::Mutex;
use prombus::Bus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Waits until a condition holds; the timeout is generous enough for a loaded machine.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition did not hold within ten seconds");
}

#[tokio::test]
async fn publish_then_subscribe_from_earliest_delivers_and_advances_the_cursor() {
    let bus = Bus::memory();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let handler = move |event: prombus::Event, _| {
        let sink = Arc::clone(&sink);
        async move {
            sink.lock().push(event.json::<String>()?);
            Ok::<(), serde_json::Error>(())
        }
    };
    bus.subscribe("t.a", "g1").from_earliest().handler(handler).await.expect("subscribes");

    bus.publish("t.a", "one").await.expect("publishes");
    let two = bus.publish("t.a", "two").await.expect("publishes");

    until(|| seen.lock().len() == 2).await;
    assert_eq!(*seen.lock(), ["one", "two"]);
    for _ in 0..500 {
        let cursor = bus.get_cursor("t.a", "g1").await.expect("reads").expect("the group exists");
        if cursor.last_id == Some(two.id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the cursor did not reach the last event");
}

#[tokio::test]
async fn nack_leaves_the_cursor_and_the_event_is_retried() {
    let bus = Bus::memory();
    let attempts = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&attempts);
    let handler = move |_, _| {
        let attempt = counter.fetch_add(1, Ordering::SeqCst) + 1;
        async move { if attempt == 1 { Err("boom") } else { Ok(()) } }
    };
    bus.subscribe("t.b", "g1").from_earliest().handler(handler).await.expect("subscribes");

    bus.publish("t.b", "x").await.expect("publishes");
    until(|| attempts.load(Ordering::SeqCst) >= 1).await;
    let cursor = bus.get_cursor("t.b", "g1").await.expect("reads").expect("the group exists");
    assert_eq!(cursor.last_id, None);
    until(|| attempts.load(Ordering::SeqCst) >= 2).await;
}
