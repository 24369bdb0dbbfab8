//! Groups that read several topics get their events in the order in which they were committed.

use crate::folder::Folder;
use crate::rig::poll;
use prombus::engine::{Engine, LogEngine, LogEngineOptions};
use prombus::{Bus, Clock, Limits, LocalBackend, ManualClock, PublishOptions, Subscription};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;

const TOPICS: u64 = 10;

fn bus_on(store: Arc<dyn Engine>, clock: &ManualClock) -> Bus {
    let backend =
        LocalBackend::open_without_timer(store, Arc::new(clock.clone()), Limits::default()).expect("opens");
    Bus::with_backend(Arc::new(backend))
}

/// Waits for a future that another thread completes.
fn wait<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(done) = poll(&mut future) {
            return done;
        }
        std::thread::yield_now();
    }
}

/// Publishes events to the topics in a pseudorandom order and in batches of random size. The payload is the commit time.
fn publish(bus: &Bus, clock: &ManualClock, count: u64, random: &mut u64) {
    let mut left = count;
    while left > 0 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (topic, size) = ((*random >> 33) % TOPICS, (*random >> 45) % 20 + 1);
        clock.advance_ms(*random >> 60);
        let mut batch = bus.batch();
        for _ in 0..size.min(left) {
            let now = clock.wall_ms();
            batch.push(format!("m.{topic}").as_str(), &now, &PublishOptions::default()).expect("an event");
        }
        left -= size.min(left);
        wait(bus.publish_batch(batch)).expect("publishes");
    }
}

/// Takes `count` events, acks them, and checks their order.
fn take(subscription: &mut Subscription, count: u64, seqs: &mut HashMap<String, u64>) {
    let (mut newest, mut taken) = (i64::MIN, 0);
    while taken < count {
        let batch = wait(Box::pin(subscription.next_batch())).expect("reads");
        for delivery in batch.iter() {
            let last = seqs.entry(delivery.topic().to_string()).or_default();
            assert_eq!(delivery.seq(), *last + 1, "{} is out of order", delivery.topic());
            *last += 1;
            let committed: i64 = delivery.json().expect("a time");
            assert!(committed >= newest, "time went backwards by {} ms at event {taken}", newest - committed);
            newest = committed;
            taken += 1;
            drop(delivery.ack());
        }
    }
}

fn in_commit_order(open: impl Fn(&ManualClock) -> Arc<dyn Engine>, is_durable: bool) {
    let clock = ManualClock::new(1_700_000_000_000);
    let mut random = 7;
    let bus = bus_on(open(&clock), &clock);
    publish(&bus, &clock, 100_000, &mut random);
    let bus = if is_durable {
        // Read from files, not from the newest events in memory.
        drop(bus);
        bus_on(open(&clock), &clock)
    } else {
        bus
    };
    let mut seqs = HashMap::new();
    let subscribe = bus.subscribe("m.*", "all").from_earliest().batch_size(100);
    let mut subscription = wait(subscribe.into_future()).expect("subscribes");
    take(&mut subscription, 100_000, &mut seqs);
    // The same with live events.
    for _ in 0..20 {
        publish(&bus, &clock, 100, &mut random);
        take(&mut subscription, 100, &mut seqs);
    }
    assert_eq!(seqs.len() as u64, TOPICS);
}

#[test]
fn a_pattern_group_gets_events_in_commit_order_from_memory() {
    in_commit_order(
        |clock| Arc::new(LogEngine::in_memory(1 << 30, Arc::new(clock.clone())).expect("opens")),
        false,
    );
}

#[test]
fn a_pattern_group_gets_events_in_commit_order_from_the_log() {
    let folder = Folder::new();
    in_commit_order(
        |clock| {
            let options = LogEngineOptions::default();
            Arc::new(LogEngine::open(folder.path(), options, Arc::new(clock.clone())).expect("opens"))
        },
        true,
    );
}
