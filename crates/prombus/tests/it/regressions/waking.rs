//! Which waiting members are woken, and that wakers are called without locks.

use super::{Counting, in_memory, poll_with};
use crate::rig::{Rig, poll};
use prombus::{Bus, Limits, ManualClock};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A member that stopped waiting may be woken in vain; the waiting members must be woken too.
#[test]
fn a_redelivery_reaches_the_waiting_member_also_if_another_stopped_waiting() {
    let rig = Rig::new(1);
    rig.publish("orders", "one");
    let mut lost = rig.subscribe("orders", "billing");
    let mut idle = rig.subscribe("orders", "billing");
    let mut waiting = rig.subscribe("orders", "billing");
    let held = rig.next(&mut lost).expect("there is an event");
    rig.commit();
    drop((held, lost));
    let (idle_waker, waker) = (Arc::<Counting>::default(), Arc::<Counting>::default());
    // The record of the failed attempt is not durable yet.
    assert!(poll_with(&mut Box::pin(idle.next()), &idle_waker).is_pending());
    let mut next = Box::pin(waiting.next());
    assert!(poll_with(&mut next, &waker).is_pending());
    rig.commit();
    for _ in 0..20 {
        rig.pass(5);
        rig.commit();
    }
    assert!(waker.0.load(Ordering::SeqCst) > 0, "there is an event, but the waiting member is not woken");
    assert!(poll_with(&mut next, &waker).is_ready());
    drop(next);
    rig.stop();
}

/// A waker that runs a closure where it is called.
struct Doing(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Doing {
    fn wake(self: Arc<Self>) {
        let what = self.0.lock().expect("no panic").take();
        if let Some(what) = what {
            what();
        }
    }
}

/// Runs a closure on a separate thread; returns false if it hangs.
fn ends(what: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    is_done.recv_timeout(Duration::from_secs(5)).is_ok()
}

/// An executor may poll or drop a task right where its waker is called.
#[test]
fn a_waker_that_drops_a_subscription_with_a_last_attempt_is_called_without_locks() {
    assert!(
        ends(|| {
            let clock = ManualClock::new(1_700_000_000_000);
            let backend = in_memory(&clock, Limits::default());
            let bus = Bus::with_backend(Arc::new(backend));
            let publish = |topic: &str| assert!(poll(&mut bus.publish(topic, "x").send()).is_ready());
            let join = |topic: &str| match poll(
                &mut bus.subscribe(topic, "billing").from_earliest().max_attempts(1).into_future(),
            ) {
                Poll::Ready(joined) => joined.expect("joins"),
                Poll::Pending => panic!("an engine in memory does not wait"),
            };
            publish("orders");
            publish("other");
            let mut held = join("orders");
            assert!(poll(&mut Box::pin(held.next())).is_ready());
            let mut other = join("other");
            let Poll::Ready(Some(Ok(delivery))) = poll(&mut Box::pin(other.next())) else {
                panic!("an event")
            };
            let mut waiting = join("waiting");
            let waker = Arc::new(Doing(Mutex::new(Some(Box::new(move || drop(held))))));
            let waker = Waker::from(waker);
            assert!(pin!(waiting.next()).poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            // A pending ack is written together with the publish that wakes the task.
            drop(delivery.ack());
            publish("waiting");
        }),
        "the waker was called with a lock held"
    );
}
