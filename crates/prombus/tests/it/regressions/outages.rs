//! Pending reads, suspended and deposed engines: leases, acks and waits during an outage.

use super::hooked_engine::{Hooked, hooked};
use crate::rig::{Rig, poll};
use prombus::engine::LogEngine;
use prombus::{
    Backend, Bus, Clock, Delivery, DeliveryBatch, GroupError, GroupName, GroupSpec, Limits, LocalBackend,
    MemberOptions, Membership, Pattern, PublishError, PullLimit, RedeliveryReason, SettleOutcome, Start,
    SystemClock, Unavailable, Verdict,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LEASE_MS: u64 = 1_000;

fn join(rig: &Rig, max_attempts: u32) -> Arc<dyn Membership> {
    let spec = GroupSpec {
        subscription: Pattern::new("orders").expect("a good pattern"),
        group: GroupName::new("billing").expect("a good name"),
        topics: Vec::new(),
        filter: None,
        from: Start::Earliest,
        expire_ms: None,
    };
    let mut options = MemberOptions::default();
    options.settings.ack_timeout_ms = LEASE_MS;
    options.settings.max_attempts = max_attempts;
    rig.done(rig.backend.join(spec, options)).expect("joins").membership
}

fn pull(member: &dyn Membership, batch: &mut DeliveryBatch) -> Poll<Result<(), GroupError>> {
    member.poll_pull(PullLimit::default(), batch, &mut Context::from_waker(Waker::noop()))
}

/// Pulls the first attempt and nacks it, so that the second is due at once.
fn fail_once(rig: &Rig, member: &dyn Membership, batch: &mut DeliveryBatch) {
    rig.publish("orders", "one");
    rig.commit();
    assert!(pull(member, batch).is_ready());
    let verdict = Verdict::Nack { delay_ms: Some(0), reason: None };
    let position = batch.items()[0].position;
    let mut outcomes = Vec::new();
    rig.done(member.settle(&[(position, verdict)], &mut outcomes)).expect("nacks");
    assert_eq!(outcomes, [SettleOutcome::Counted]);
    // The start of the second attempt is made durable.
    assert!(pull(member, batch).is_pending());
    rig.commit();
}

/// The second and last attempt is due, and its read is pending for longer than its lease lasts.
fn redelivery_with_a_pending_read() -> (Rig, Arc<Hooked>, Arc<dyn Membership>, DeliveryBatch) {
    let (rig, engine) = hooked();
    let member = join(&rig, 2);
    let mut batch = DeliveryBatch::default();
    fail_once(&rig, &*member, &mut batch);
    engine.reads.is_pending.store(true, Ordering::SeqCst);
    assert!(pull(&*member, &mut batch).is_pending());
    for _ in 0..3 {
        rig.pass(LEASE_MS);
        rig.commit();
        assert!(pull(&*member, &mut batch).is_pending());
    }
    engine.reads.is_pending.store(false, Ordering::SeqCst);
    (rig, engine, member, batch)
}

#[test]
fn a_lease_runs_from_the_hand_out_however_long_the_read_took() {
    let (rig, _engine, member, mut batch) = redelivery_with_a_pending_read();
    assert!(pull(&*member, &mut batch).is_ready());
    let item = &batch.items()[0];
    assert_eq!((item.attempt, item.lease_ms), (2, LEASE_MS));
    assert_eq!(item.reason, Some(RedeliveryReason::Nacked));
    rig.pass(LEASE_MS - 1);
    assert!(member.is_live(&batch.items()[0], &batch));
    rig.pass(1);
    rig.commit();
    assert_eq!(rig.letters("orders").len(), 1, "the second attempt was the last");
    rig.stop();
}

#[test]
fn a_member_that_is_lost_during_a_read_has_not_used_an_attempt() {
    let (rig, _engine, member, mut batch) = redelivery_with_a_pending_read();
    member.lose();
    rig.pass(10);
    rig.commit();
    assert_eq!(rig.letters("orders").len(), 0, "no member got the second attempt");
    let other = join(&rig, 2);
    assert!(pull(&*other, &mut batch).is_pending() || !batch.is_empty());
    rig.commit();
    assert!(!batch.is_empty() || pull(&*other, &mut batch).is_ready());
    assert_eq!(batch.items()[0].attempt, 2);
    rig.stop();
}

/// The guarantee is 10 ms, also after a suspension that was too short to be reported.
#[test]
fn unawaited_acks_are_durable_within_10_ms_after_a_short_suspension() {
    let (rig, engine) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all: Vec<Delivery> = rig.all(&mut orders);
    rig.commit();
    engine.suspend();
    rig.pass(1);
    engine.resume();
    rig.pass(1);
    drop(all[0].ack());
    rig.pass(10);
    rig.commit();
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1, "an ack is not durable after 10 ms");
        after.stop();
    }
    rig.stop();
}

/// The same for acks during the suspension: 10 ms from its end.
#[test]
fn acks_of_a_suspension_are_durable_within_10_ms_of_its_end() {
    let (rig, engine) = hooked();
    rig.publish("orders", "one");
    let mut orders = rig.subscribe("orders", "billing");
    let all: Vec<Delivery> = rig.all(&mut orders);
    rig.commit();
    engine.suspend();
    rig.pass(1);
    drop(all[0].ack());
    for _ in 0..50 {
        rig.pass(10);
    }
    engine.resume();
    rig.pass(10);
    rig.commit();
    for after in rig.after_power_cuts() {
        assert_eq!(after.floor("orders", "billing"), 1, "an ack is not durable 10 ms after the suspension");
        after.stop();
    }
    rig.stop();
}

#[test]
fn a_suspension_is_reported_after_engine_wait_ms_and_not_before() {
    let (rig, engine) = hooked();
    rig.publish("orders", "one");
    engine.suspend();
    rig.pass(0);
    let mut publishing = rig.bus.publish("orders", "two").send();
    let wait_ms = Limits::default().engine_wait_ms;
    for _ in 0..wait_ms / 100 - 1 {
        rig.pass(100);
        assert!(poll(&mut publishing).is_pending());
    }
    rig.pass(100);
    let refused = poll(&mut publishing);
    assert!(
        matches!(refused, Poll::Ready(Err(PublishError::Unavailable(Unavailable::Suspended(_))))),
        "{refused:?}"
    );
    rig.stop();
}

#[test]
fn a_deposed_bus_leases_nothing() {
    let (rig, engine) = hooked();
    let member = join(&rig, 5);
    rig.publish("orders", "one");
    rig.commit();
    engine.observer().deposed("elsewhere".to_owned());
    let mut batch = DeliveryBatch::default();
    let pulled = pull(&*member, &mut batch);
    let is_refused = matches!(&pulled, Poll::Ready(Err(GroupError::Unavailable(Unavailable::Deposed(leader)))) if leader == "elsewhere");
    assert!(is_refused, "{pulled:?}");
    rig.stop();
}

#[test]
fn a_stream_of_a_deposed_bus_returns_one_error_and_ends() {
    let (rig, engine) = hooked();
    let mut orders = rig.join(rig.bus.subscribe("orders", "billing"));
    engine.observer().deposed("elsewhere".to_owned());
    let first = poll(&mut Box::pin(orders.next()));
    let is_reported =
        matches!(first, Poll::Ready(Some(Err(GroupError::Unavailable(Unavailable::Deposed(_))))));
    assert!(is_reported);
    assert!(matches!(poll(&mut Box::pin(orders.next())), Poll::Ready(None)));
    rig.stop();
}

/// The dead letter of an event that is given up waits for a read that never ends.
#[test]
fn a_verdict_that_waits_for_its_dead_letter_fails_during_a_suspension() {
    let (rig, engine) = hooked();
    let member = join(&rig, 5);
    rig.publish("orders", "one");
    rig.commit();
    let mut batch = DeliveryBatch::default();
    assert!(pull(&*member, &mut batch).is_ready());
    engine.reads.is_pending.store(true, Ordering::SeqCst);
    engine.suspend();
    rig.pass(0);
    let verdict = (batch.items()[0].position, Verdict::GiveUp { reason: None });
    let mut ticket = member.settle(&[verdict], &mut Vec::new());
    assert!(poll(&mut ticket).is_pending());
    rig.pass(Limits::default().engine_wait_ms + 10);
    let told = poll(&mut ticket);
    assert!(matches!(told, Poll::Ready(Err(Unavailable::Suspended(_)))), "{told:?}");
    rig.stop();
}

/// A waker that ends the suspension.
struct Resuming(Arc<Hooked>);

impl Wake for Resuming {
    fn wake(self: Arc<Self>) {
        self.0.resume();
    }
}

#[test]
fn a_waker_that_is_woken_by_a_suspension_may_end_it() {
    let (rig, engine) = hooked();
    // Appended but not committed.
    let mut publishing = rig.bus.publish("orders", "one").send();
    assert!(poll(&mut publishing).is_pending());
    let waker = Waker::from(Arc::new(Resuming(Arc::clone(&engine))));
    let polled = std::pin::pin!(&mut publishing).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    engine.suspend();
    let (done, is_done) = mpsc::channel();
    let (backend, clock) = (rig.backend.clone(), rig.clock.clone());
    std::thread::spawn(move || {
        backend.tick();
        clock.advance_ms(Limits::default().engine_wait_ms + 10);
        backend.tick();
        done.send(()).expect("the test waits");
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the timer is not stuck in a waker");
    rig.commit();
    assert!(matches!(poll(&mut publishing), Poll::Ready(Ok(_))));
    rig.stop();
}

/// The read of a dead letter blocks its thread: acks that are not awaited are still written in time.
#[tokio::test]
async fn a_dead_letter_that_cannot_be_read_does_not_delay_acks() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let log = Arc::new(LogEngine::in_memory(1 << 20, Arc::clone(&clock)).expect("opens"));
    let engine = Arc::new(Hooked::over(log));
    let backend = LocalBackend::open(Arc::clone(&engine) as Arc<_>, clock, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend));
    for payload in ["poison", "good"] {
        bus.publish("orders", payload).await.expect("publishes");
    }
    let mut orders = bus.subscribe("orders", "billing").from_earliest().await.expect("subscribes");
    let poison = orders.next().await.expect("continues").expect("reads");
    let good = orders.next().await.expect("continues").expect("reads");
    let (reading, is_reading) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel::<()>();
    *engine.reads.in_next.lock().expect("no panic") = Some(Box::new(move || {
        reading.send(()).expect("the test waits");
        let _ = blocked.recv();
    }));
    let given_up = poison.give_up("poison");
    is_reading.recv_timeout(Duration::from_secs(20)).expect("the worker reads the event");
    let (told, records) = mpsc::channel();
    *engine.records.lock().expect("no panic") = Some(told);
    drop(good.ack());
    let written = records.recv_timeout(Duration::from_secs(5));
    drop(unblock);
    written.expect("the ack is written while the dead letter waits");
    assert!(!given_up.await.expect("gives up").stale);
    bus.close().await.expect("closes");
}
