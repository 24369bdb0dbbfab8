//! Leases of any length, and subscribers that are slow or block.

use super::{in_memory, member};
use crate::rig::poll;
use prombus::{Bus, DeliveryBatch, Limits, ManualClock, MemberOptions, PullLimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

#[test]
fn a_lease_may_have_any_length() {
    let clock = ManualClock::new(1_700_000_000_000);
    clock.advance_ms(1_000);
    let backend = in_memory(&clock, Limits::default());
    let bus = Bus::with_backend(Arc::new(backend.clone()));
    assert!(poll(&mut bus.publish("orders", "one").send()).is_ready());
    let mut options = MemberOptions::default();
    options.settings.ack_timeout_ms = u64::MAX;
    let member = member(&backend, "orders", options);
    let mut batch = DeliveryBatch::default();
    let pulled = member.poll_pull(PullLimit::default(), &mut batch, &mut Context::from_waker(Waker::noop()));
    assert!(pulled.is_ready());
    member.hold(true);
    clock.advance_ms(1_000);
    member.hold(false);
    assert_eq!(batch.items().len(), 1);
}

/// An event that waits in a stream's buffer uses no attempt: a reader that handles each event in time gets each once.
#[tokio::test]
async fn a_slow_reader_gets_every_event_once() {
    let bus = Bus::memory();
    for number in 0..12 {
        bus.publish("orders", &number).await.expect("publishes");
    }
    let lease = Duration::from_millis(200);
    let mut orders =
        bus.subscribe("orders", "billing").from_earliest().ack_timeout(lease).await.expect("joins");
    for seq in 1..=12 {
        let delivery = orders.next().await.expect("an event").expect("reads");
        assert_eq!((delivery.seq(), delivery.attempt()), (seq, 1));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!delivery.ack().await.expect("acks").stale);
    }
    let info = &bus.groups().await.expect("lists groups")[0];
    assert_eq!((info.lag, info.counters.expired, info.counters.delivered), (0, 0, 12));
}

/// A handler that blocks its thread is acked event by event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_is_acked_event_by_event() {
    let bus = Bus::memory();
    for number in 0..12 {
        bus.publish("orders", &number).await.expect("publishes");
    }
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let subscribe = bus.subscribe("orders", "billing").from_earliest();
    let handler = subscribe.ack_timeout(Duration::from_millis(200)).handler(move |_, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        async { Ok::<(), String>(()) }
    });
    let handler = handler.await.expect("joins");
    for _ in 0..500 {
        if bus.groups().await.expect("lists groups")[0].lag == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let info = &bus.groups().await.expect("lists groups")[0];
    assert_eq!((info.lag, info.counters.expired, calls.load(Ordering::SeqCst)), (0, 0, 12));
    handler.unsubscribe().await.expect("leaves");
}
