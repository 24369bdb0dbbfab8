//! The leasing gate: a leader that could not renew its lease leases no events.

use super::process::{Process, pass};
use prombus::engine::simulated::{Database, LeaseFault};
use prombus::{Delivery, GroupError, ManualClock, SettleOutcome, Subscription, Unavailable, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

async fn next(orders: &mut Subscription) -> Delivery {
    let next = tokio::time::timeout(Duration::from_secs(30), orders.next()).await;
    next.expect("comes").expect("the stream continues").expect("is readable")
}

/// Whether no delivery arrives within a short time.
async fn gets_nothing(orders: &mut Subscription) -> bool {
    tokio::time::timeout(Duration::from_millis(50), orders.next()).await.is_err()
}

async fn leader(clock: &ManualClock) -> (Process, Subscription) {
    let mut a = Process::new("a", &Database::new(), clock);
    a.run().await;
    let orders = a.bus().subscribe("orders", "billing").from_earliest().batch_size(1);
    let orders = orders.max_in_flight(1).await.expect("joins");
    (a, orders)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_leased_after_five_seconds_without_a_renewal_until_the_next_one() {
    let clock = ManualClock::new(1_000);
    let (mut a, mut orders) = leader(&clock).await;
    for payload in 1..=3 {
        a.publish(payload).await.expect("publishes");
    }
    next(&mut orders).await.ack().await.expect("acks");
    a.store.fault_of_all(Some(LeaseFault::RequestLost));
    pass(&clock, 4_950, &mut [&mut a]).await;
    next(&mut orders).await.ack().await.expect("acks");
    pass(&clock, 50, &mut [&mut a]).await;
    assert!(gets_nothing(&mut orders).await, "5 s have passed");
    assert!(matches!(a.bus().backend().health(), Err(Unavailable::Suspended(_))));
    a.publish(4).await.expect("publishing is protected by the fence, not by the gate");
    pass(&clock, 60_000, &mut [&mut a]).await;
    assert!(gets_nothing(&mut orders).await);
    assert_eq!(a.holds(), Some(1), "it does not step down by itself");

    let waiting = tokio::spawn(async move { (next(&mut orders).await.seq(), orders) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    a.store.fault_of_all(None);
    pass(&clock, 300, &mut [&mut a]).await;
    let (seq, mut orders) = waiting.await.expect("no panic");
    assert_eq!(seq, 3, "the waiting member is woken, and nothing was skipped");
    assert!(gets_nothing(&mut orders).await, "its window is full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_reserved_when_the_gate_closed_are_returned() {
    let clock = ManualClock::new(1_000);
    let (mut a, mut orders) = leader(&clock).await;
    let mut other = a.bus().subscribe("orders", "billing").batch_size(1).await.expect("joins");
    a.publish(1).await.expect("publishes");
    // The read of the reserved event ends only after the gate has closed.
    let engine = a.store.engine().expect("it leads");
    engine.suspend("slow");
    let reading = tokio::spawn(async move { (next(&mut orders).await.seq(), orders) });
    tokio::time::sleep(Duration::from_millis(50)).await;
    clock.advance_ms(5_000);
    engine.resume();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reading.is_finished(), "it was read, but must not be leased");
    assert_eq!(a.bus().groups().await.expect("lists").remove(0).in_flight, 0);
    reading.abort();
    assert!(reading.await.is_err_and(|error| error.is_cancelled()));
    a.run().await;
    assert_eq!(next(&mut other).await.seq(), 1, "it was returned, and another member gets it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_extended_while_the_gate_is_closed() {
    let clock = ManualClock::new(1_000);
    let (mut a, mut orders) = leader(&clock).await;
    let event = a.bus().publish("orders", &1).await.expect("publishes");
    let held = next(&mut orders).await;
    let backend = a.bus().backend().clone();
    let extend = || backend.settle("orders", "billing", event.id, Verdict::Extend { extend_ms: 30_000 });
    assert!(held.extend(Duration::from_secs(30)));
    assert!(matches!(extend().await, Ok(SettleOutcome::Extended(_))));
    clock.advance_ms(5_000);
    assert!(!held.extend(Duration::from_secs(30)), "another process may lease the event at any time");
    let refused = extend().await.expect_err("an extension by id fails too");
    assert!(matches!(refused, GroupError::Unavailable(Unavailable::Suspended(_))), "{refused}");
    a.run().await;
    assert!(held.extend(Duration::from_secs(30)), "the lease was renewed after all");
    held.ack().await.expect("acks");
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_waits_for_the_gate_is_not_woken_before_it_opens() {
    let clock = ManualClock::new(1_000);
    let (mut a, mut orders) = leader(&clock).await;
    a.publish(1).await.expect("publishes");
    clock.advance_ms(5_000);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut next = Box::pin(orders.next());
    assert!(next.as_mut().poll(&mut context).is_pending());
    a.publish(2).await.expect("publishes");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "neither a timer nor a commit wakes it");
    a.run().await;
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}
