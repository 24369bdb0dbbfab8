//! The gate: a leader that could not renew leases nothing.

use super::process::{Process, pass};
use prombus::engine::simulated::{Database, LeaseFault};
use prombus::{Clock as _, Delivery, ManualClock, Subscription};
use std::time::Duration;

async fn next(orders: &mut Subscription) -> Delivery {
    let next = tokio::time::timeout(Duration::from_secs(30), orders.next()).await;
    next.expect("comes").expect("the stream continues").expect("is readable")
}

/// Whether nothing comes for a moment.
async fn is_silent(orders: &mut Subscription) -> bool {
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
async fn no_event_is_leased_from_five_seconds_without_a_renewal_on_until_the_next_one() {
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
    assert!(is_silent(&mut orders).await, "5 s have passed");
    a.publish(4).await.expect("publishing is the fence's affair");
    pass(&clock, 60_000, &mut [&mut a]).await;
    assert!(is_silent(&mut orders).await);
    assert_eq!(a.holds(), Some(1), "it does not step down by itself");

    let waiting = tokio::spawn(async move { (next(&mut orders).await.seq(), orders) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    a.store.fault_of_all(None);
    pass(&clock, 300, &mut [&mut a]).await;
    let (seq, mut orders) = waiting.await.expect("no panic");
    assert_eq!(seq, 3, "the one that waited is woken, and nothing was skipped");
    assert!(is_silent(&mut orders).await, "its window is full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_reserved_when_the_gate_closed_are_given_back() {
    let clock = ManualClock::new(1_000);
    let (mut a, mut orders) = leader(&clock).await;
    let mut other = a.bus().subscribe("orders", "billing").batch_size(1).await.expect("joins");
    a.publish(1).await.expect("publishes");
    // The read of the reserved event does not end before the gate has closed.
    a.store.engine().expect("it leads").suspend("slow");
    assert!(is_silent(&mut orders).await);
    clock.advance_ms(5_000);
    a.store.engine().expect("it leads").resume();
    assert!(is_silent(&mut orders).await, "it was read, but must not be leased");
    assert!(is_silent(&mut other).await);
    a.run().await;
    assert_eq!(next(&mut other).await.seq(), 1, "it was given back, and goes to whoever asks first");
    let group = a.bus().groups().await.expect("lists").remove(0);
    assert_eq!((group.in_flight, clock.steady_ms()), (1, 5_000));
}
