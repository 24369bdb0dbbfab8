//! The whole path (publish, deliver, ack), and a group that catches up with existing events.

use crate::load::BusPublisher;
use crate::publish::runtime;
use crate::recorder::Latencies;
use crate::scratch::Scratch;
use crate::{Failure, Plan, Round, Stopwatch};
use prombus::{Bus, Subscription};
use std::time::Instant;

const TOPIC: &str = "orders";

async fn subscribe(bus: &Bus, group: &str) -> Result<Subscription, Failure> {
    let subscribe = bus.subscribe(TOPIC, group).from_earliest();
    Ok(subscribe.batch_size(1_000).max_in_flight(10_000).await?)
}

/// Takes and acks this many events.
async fn consume(mut subscription: Subscription, events: u64) -> Result<Subscription, Failure> {
    let mut seen = 0;
    while seen < events {
        let deliveries = subscription.next_batch().await?;
        seen += deliveries.len() as u64;
        drop(deliveries.ack());
    }
    Ok(subscription)
}

/// One publisher and some groups at the same time. The rate counts deliveries.
pub fn measure_live(plan: &Plan, scratch: Option<&Scratch>, groups: usize) -> Result<Round, Failure> {
    let folder = scratch.map(Scratch::fresh);
    runtime()?.block_on(async {
        let bus = match &folder {
            Some(folder) => Bus::open(folder.path()).await?,
            None => Bus::builder().memory_bytes(16 << 30).memory()?,
        };
        // Enough events for about the length of the round.
        let rate = if folder.is_some() { 500_000.0 } else { 1_000_000.0 } / (1.0 + groups as f64 / 4.0);
        let events = (plan.round.as_secs_f64() * rate) as u64;
        let warm_up = events / 4;
        let mut publisher = BusPublisher::new(&bus, TOPIC, 1_024)?;
        let mut subscriptions = Vec::new();
        for group in 0..groups {
            subscriptions.push(subscribe(&bus, &format!("group-{group}")).await?);
        }
        let mut watch = Stopwatch::start();
        for count in [warm_up, events] {
            watch = Stopwatch::start();
            publisher.latencies.reset();
            let consumers: Vec<_> =
                subscriptions.drain(..).map(|it| tokio::spawn(consume(it, count))).collect();
            publisher.run(|_, published| published >= count).await?;
            for consumer in consumers {
                subscriptions.push(consumer.await??);
            }
        }
        let round = watch.stop(events * groups as u64, publisher.latencies.percentiles());
        drop(subscriptions);
        bus.close().await?;
        Ok(round)
    })
}

/// A group that starts at the oldest of many existing events.
pub fn measure_catch_up(plan: &Plan, scratch: &Scratch) -> Result<Round, Failure> {
    let folder = scratch.fresh();
    runtime()?.block_on(async {
        let bus = Bus::open(folder.path()).await?;
        let events = plan.kept_events;
        BusPublisher::new(&bus, TOPIC, 1_024)?.run(|_, count| count >= events).await?;
        let subscription = subscribe(&bus, "late").await?;
        let started = Instant::now();
        let watch = Stopwatch::start();
        let subscription = consume(subscription, events).await?;
        let mut latencies = Latencies::new();
        latencies.add(started.elapsed(), 1);
        let round = watch.stop(events, latencies.percentiles());
        drop(subscription);
        bus.close().await?;
        Ok(round)
    })
}
