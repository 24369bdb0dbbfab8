//! Regression tests, each with the smallest history that shows the bug.

mod append_size;
mod closing;
mod full_disk;
mod group_expiry;
mod hooked_engine;
mod leases;
mod outages;
mod reading_threads;
mod waking;

use crate::rig::Rig;
use prombus::engine::LogEngine;
use prombus::{
    Backend, Clock, GroupName, GroupSpec, Limits, LocalBackend, ManualClock, MemberOptions, Pattern, Start,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Fills the disk until publishes fail.
fn fill(rig: &Rig) {
    rig.disk.set_capacity(Some(rig.disk.used_bytes()));
    let filler = "f".repeat(1_000);
    for _ in 0..1_000 {
        if rig.done(rig.bus.publish("filler", filler.as_str()).send()).is_err() {
            return;
        }
    }
    panic!("the disk is never full");
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Arc<Counting>) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
}

fn member(backend: &LocalBackend, topic: &str, options: MemberOptions) -> Arc<dyn prombus::Membership> {
    let spec = GroupSpec {
        subscription: Pattern::new(topic).expect("a good pattern"),
        group: GroupName::new("billing").expect("a good name"),
        topics: Vec::new(),
        filter: None,
        from: Start::Earliest,
        expire_ms: None,
    };
    let mut joining = backend.join(spec, options);
    match pin!(&mut joining).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(joined) => joined.expect("joins").membership,
        Poll::Pending => panic!("an engine in memory does not wait"),
    }
}

fn in_memory(clock: &ManualClock, limits: Limits) -> LocalBackend {
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(LogEngine::in_memory(1 << 20, Arc::clone(&shared)).expect("opens"));
    LocalBackend::open_without_timer(store, shared, limits).expect("opens")
}
