//! Rules about handlers and acks by id.

use super::probe::{
    ack, floor, group_info, next, nothing, publish, publish_numbers, soon, subscribe, until, until_floor,
};
use crate::{Bus, DeliveryContext, Event, RedeliveryReason};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

type Seen = Arc<Mutex<Vec<(u64, DeliveryContext)>>>;

async fn until_seen(seen: &Seen, count: usize) {
    until("a call of the handler", || async { seen.lock().len() >= count }).await;
}

/// `Ok` acks; the handler is called in the order of events.
pub async fn a_handlers_ok_acks(bus: Bus) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().handler(move |event: Event, context| {
        sink.lock().push((event.seq(), context));
        async { Ok::<(), String>(()) }
    });
    let handler = handler.await.expect("subscribes");
    publish_numbers(&bus, "orders", 20).await;
    until_floor(&bus, "orders", "billing", 20).await;
    assert_eq!(seen.lock().iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    assert!(seen.lock().iter().all(|(_, context)| context.attempt == 1 && context.max_attempts == 5));
    soon("the end of the handler", handler.unsubscribe()).await.expect("leaves");
}

/// `Err` nacks: the event is redelivered, and finally becomes a dead letter.
pub async fn a_handlers_error_nacks(bus: Bus) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().max_attempts(2).handler(
        move |event: Event, context: DeliveryContext| {
            let result = if event.seq() == 1 { Err(format!("boom {}", context.attempt)) } else { Ok(()) };
            sink.lock().push((event.seq(), context));
            async move { result }
        },
    );
    handler.await.expect("subscribes");
    publish_numbers(&bus, "orders", 2).await;
    let letter = &super::probe::dead_letters(&bus, "orders", 1).await[0];
    assert_eq!((letter.err.as_str(), letter.attempts), ("boom 2", 2));
    until_floor(&bus, "orders", "billing", 2).await;
    let contexts: Vec<_> =
        seen.lock().iter().filter(|(seq, _)| *seq == 1).map(|(_, it)| (it.attempt, it.reason)).collect();
    assert_eq!(contexts, [(1, None), (2, Some(RedeliveryReason::Nacked))]);
}

/// A panic nacks, and the handler continues.
pub async fn a_handlers_panic_nacks_and_the_handler_continues(bus: Bus) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().handler(
        move |event: Event, context: DeliveryContext| {
            let is_first = context.attempt == 1;
            sink.lock().push((event.seq(), context));
            // One panic before the first await, one after it.
            assert!(event.seq() != 1 || !is_first, "the test's handler panics on purpose");
            async move {
                tokio::task::yield_now().await;
                assert!(event.seq() != 2 || !is_first, "the test's handler panics on purpose");
                Ok::<(), String>(())
            }
        },
    );
    handler.await.expect("subscribes");
    publish_numbers(&bus, "orders", 3).await;
    until_floor(&bus, "orders", "billing", 3).await;
    let mut attempts: Vec<_> = seen.lock().iter().map(|(seq, it)| (*seq, it.attempt)).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]);
}

/// Handler calls that wait run concurrently, as many as the window allows.
pub async fn handlers_run_concurrently_within_the_window(bus: Bus) {
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (gate, high) = (Arc::new(Semaphore::new(0)), Arc::clone(&most));
    let opened = Arc::clone(&gate);
    let count = Arc::clone(&running);
    let handler = bus.subscribe("orders", "billing").from_earliest().max_in_flight(3).handler(move |_, _| {
        let (gate, running, high) = (Arc::clone(&opened), Arc::clone(&count), Arc::clone(&high));
        async move {
            high.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await.expect("never closed").forget();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<(), String>(())
        }
    });
    handler.await.expect("subscribes");
    publish_numbers(&bus, "orders", 10).await;
    until("three handlers", || async { running.load(Ordering::SeqCst) == 3 }).await;
    gate.add_permits(10);
    until_floor(&bus, "orders", "billing", 10).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

/// Unsubscribing waits for the running handler calls. Their results apply, and no new call starts.
pub async fn unsubscribing_waits_for_running_handlers(bus: Bus) {
    let (started, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
    let (count, opened) = (Arc::clone(&started), Arc::clone(&gate));
    let handler = bus.subscribe("orders", "billing").from_earliest().handler(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.expect("never closed").forget();
            Ok::<(), String>(())
        }
    });
    let handler = handler.await.expect("subscribes");
    publish_numbers(&bus, "orders", 2).await;
    until("the handlers", || async { started.load(Ordering::SeqCst) == 2 }).await;
    let mut leaving = tokio::spawn(handler.unsubscribe());
    let early = tokio::time::timeout(Duration::from_millis(50), &mut leaving).await;
    assert!(early.is_err(), "it did not wait for the handlers");
    publish(&bus, "orders", 3).await;
    gate.add_permits(10);
    soon("the end of the handler", leaving).await.expect("no panic").expect("leaves");
    assert_eq!((started.load(Ordering::SeqCst), floor(&bus, "orders", "billing").await), (2, 2));
    assert_eq!(group_info(&bus, "orders", "billing").await.members, 0);
}

/// Dropping the handle does not stop the handler.
pub async fn a_handler_continues_without_its_handle(bus: Bus) {
    let handler = bus.subscribe("orders", "billing").from_earliest();
    drop(handler.handler(|_, _| async { Ok::<(), String>(()) }).await.expect("subscribes"));
    publish_numbers(&bus, "orders", 3).await;
    until_floor(&bus, "orders", "billing", 3).await;
}

/// With manual acks a handler's `Ok` settles nothing; the program acks and nacks by id.
pub async fn manual_acks_are_by_id(bus: Bus) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().manual_ack(true).handler(
        move |event: Event, context| {
            sink.lock().push((event.seq(), context));
            async { Ok::<(), String>(()) }
        },
    );
    handler.await.expect("subscribes");
    let published = publish_numbers(&bus, "orders", 2).await;
    until_seen(&seen, 2).await;
    assert_eq!((floor(&bus, "orders", "billing").await), 0);
    assert_eq!(group_info(&bus, "orders", "billing").await.in_flight, 2);

    let acked = bus.ack("orders", "billing", published[0].id).await.expect("acks");
    assert!(acked.ok && !acked.stale && acked.id == published[0].id);
    assert_eq!(floor(&bus, "orders", "billing").await, 1);
    let nacked = bus.nack("orders", "billing", published[1].id, Some("boom")).await.expect("nacks");
    assert!(nacked.ok && !nacked.stale && nacked.err.as_deref() == Some("boom"));
    until_seen(&seen, 3).await;
    let (seq, context) = seen.lock()[2].clone();
    assert_eq!((seq, context.attempt, context.reason), (2, 2, Some(RedeliveryReason::Nacked)));
    assert!(!bus.ack("orders", "billing", published[1].id).await.expect("acks").stale);
    assert_eq!(floor(&bus, "orders", "billing").await, 2);
}

/// An ack of an id that is not in flight is stale: the event is settled, was never delivered, or never existed.
pub async fn an_ack_by_id_of_an_event_not_in_flight_is_stale(bus: Bus) {
    let published = publish_numbers(&bus, "orders", 2).await;
    let orders = bus.subscribe("orders", "billing").from_earliest().batch_size(1);
    let mut orders = orders.await.expect("subscribes");
    ack(&next(&mut orders).await).await;
    for id in [published[0].id, published[1].id, crate::Uuid::from_u128(1)] {
        assert!(bus.ack("orders", "billing", id).await.expect("succeeds").stale);
        assert!(bus.nack("orders", "billing", id, None).await.expect("succeeds").stale);
    }
    assert_eq!(next(&mut orders).await.seq(), 2);
}

/// A handler with manual acks that unsubscribes leaves cleanly: unacked events go to other members, and the attempt does not
/// count.
pub async fn a_handler_that_unsubscribes_counts_no_attempt(bus: Bus) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let handler = bus.subscribe("orders", "billing").from_earliest().manual_ack(true).handler(
        move |event: Event, context| {
            sink.lock().push((event.seq(), context));
            async { Ok::<(), String>(()) }
        },
    );
    let handler = handler.await.expect("subscribes");
    publish(&bus, "orders", 1).await;
    until_seen(&seen, 1).await;
    soon("the end of the handler", handler.unsubscribe()).await.expect("leaves");
    let mut other = subscribe(&bus, "orders", "billing").await;
    let again = next(&mut other).await;
    assert_eq!((again.attempt(), again.reason()), (1, None));
    nothing(&mut other).await;
}
