//! Measures the cost of large numbers: millions of settled events after one that is never settled, a filter that drops
//! nearly everything, and a million leases.
//!
//! ```text
//! cargo run --release -p prombus --example scale              # five million events; takes a minute and 3 GB of disk
//! EVENTS=1000000 cargo run --release -p prombus --example scale
//! ```

#![allow(clippy::print_stdout, reason = "the program prints its figures")]

use prombus::delivery::{Group, Leased, MemberSettings, Position, Restored, Sender};
use prombus::engine::{LogEngine, LogEngineOptions};
use prombus::{Bus, PublishOptions, Subscription, SystemClock, Topic};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const TOPIC: &str = "orders";
/// One in this many events has the tag that the filter wants.
const TAGGED_EVERY: u64 = 1_000;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let events = match std::env::var("EVENTS") {
        Ok(text) => text.parse().map_err(|_| format!("EVENTS={text:?} is not a number"))?,
        Err(_) => 5_000_000_u64,
    };
    let folder = std::env::temp_dir().join(format!("prombus-scale-{}", std::process::id()));
    let ran = on_disk(&folder, events).await;
    std::fs::remove_dir_all(&folder)?;
    ran?;
    a_million_leases();
    Ok(())
}

async fn on_disk(folder: &Path, events: u64) -> Result<(), Failure> {
    let clock = Arc::new(SystemClock::default());
    let store = Arc::new(LogEngine::open(folder, LogEngineOptions::default(), clock)?);
    let bus = Bus::builder().over_engine(Arc::clone(&store) as Arc<dyn prombus::engine::Engine>)?;
    println!("== one event unsettled, {events} later ones acked");
    stuck_event(&bus, events).await?;
    println!("== a filter that drops 99.9 % of {events} events");
    filter(&bus, &store, events).await?;
    bus.close().await?;
    Ok(())
}

/// Publishes in the background while a group takes everything and never settles the first event.
async fn stuck_event(bus: &Bus, events: u64) -> Result<(), Failure> {
    let mut subscription = subscribe(bus, "stuck").await?;
    let publisher = tokio::spawn(publish(bus.clone(), events));
    let mut stuck = None;
    let mut acked = 0;
    while acked < events - 1 {
        let deliveries = subscription.next_batch().await?;
        if stuck.is_none() {
            let mut first = deliveries.iter();
            stuck = first.next();
            acked += first.map(|delivery| drop(delivery.ack())).count() as u64;
        } else {
            let before = acked;
            acked += deliveries.len() as u64;
            drop(deliveries.ack());
            if before * 5 / events != acked * 5 / events {
                report(bus, acked).await?;
            }
        }
        if let Some(stuck) = &stuck {
            // The stuck event stays leased all the time.
            stuck.extend(Duration::from_secs(3_600));
        }
    }
    report(bus, acked).await?;
    publisher.await?.map_err(|error| error.to_string())?;
    Ok(())
}

async fn report(bus: &Bus, acked: u64) -> Result<(), Failure> {
    let groups = bus.groups().await?;
    let group = &groups[0];
    let floor = group.topics[0].floor;
    println!(
        "{acked:>9} acked: floor {floor}, {} settled above it, {} in flight, {} MiB resident",
        group.topics[0].settled_above,
        group.in_flight,
        resident_mib()
    );
    Ok(())
}

/// A group whose filter wants one event in a thousand. Dropped events need no commits of their own.
async fn filter(bus: &Bus, store: &LogEngine, events: u64) -> Result<(), Failure> {
    let subscribe = bus.subscribe(TOPIC, "filtered").from_earliest().tag("wanted").batch_size(1_000);
    let mut subscription = subscribe.max_in_flight(100_000).await?;
    // By then the acks of the previous group are written.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let commits = store.log().durable_batch();
    let started = Instant::now();
    let mut kept = 0;
    while kept < events / TAGGED_EVERY {
        // Nothing is acked: an ack would have a commit of its own.
        kept += subscription.next_batch().await?.len() as u64;
    }
    let seconds = started.elapsed().as_secs_f64();
    let commits = store.log().durable_batch() - commits;
    println!(
        "{kept} of {events} wanted, {:.1} million events/s scanned, {commits} commits meanwhile",
        events as f64 / seconds / 1e6
    );
    let groups = bus.groups().await?;
    let filtered = groups.iter().find(|group| group.group == "filtered").ok_or("the group is missing")?;
    println!(
        "{} events were dropped, the floor is at {}",
        filtered.counters.passed_over, filtered.topics[0].floor
    );
    Ok(())
}

async fn subscribe(bus: &Bus, group: &str) -> Result<Subscription, Failure> {
    let subscribe = bus.subscribe(TOPIC, group).from_earliest().batch_size(1_000);
    Ok(subscribe.max_in_flight(10_000).await?)
}

async fn publish(bus: Bus, events: u64) -> Result<(), prombus::PublishError> {
    let topic = Topic::new(TOPIC)?;
    let payload = format!("{{\"note\":\"{}\"}}", "x".repeat(250));
    let plain = PublishOptions::default();
    let tagged = PublishOptions { tags: vec!["wanted".to_owned()], ..PublishOptions::default() };
    let mut window = VecDeque::new();
    let mut next = 1;
    while next <= events {
        let mut batch = bus.batch();
        for _ in 0..100.min(events - next + 1) {
            let options = if next % TAGGED_EVERY == 0 { &tagged } else { &plain };
            batch.push_json(topic.clone(), payload.as_bytes(), options)?;
            next += 1;
        }
        window.push_back(bus.publish_batch(batch));
        if window.len() > 20
            && let Some(publishing) = window.pop_front()
        {
            publishing.await?;
        }
    }
    for publishing in window {
        publishing.await?;
    }
    Ok(())
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// A thousand groups with a thousand leases each, leased in pulls of a hundred, in the pure group machine.
fn a_million_leases() {
    const GROUPS: u64 = 1_000;
    const LEASES: u64 = 1_000;
    const PULL: u32 = 100;
    println!("== a million leases over {GROUPS} groups");
    let settings =
        MemberSettings { max_in_flight: LEASES as u32, batch_size: PULL, ..MemberSettings::default() };
    let per_lease = |started: Instant| started.elapsed().as_nanos() as f64 / (GROUPS * LEASES) as f64;
    let (mut redelivered, mut leased): (Vec<Position>, Vec<Leased>) = (Vec::new(), Vec::new());
    let mut groups = Vec::new();
    let started = Instant::now();
    for number in 0..GROUPS {
        let mut group = Group::new(number);
        let source = group.add_source(Restored::default());
        group.grant(source, LEASES);
        let member = group.join(settings);
        let mut reserved = Vec::new();
        let mut kept = Vec::new();
        for pull in 0..LEASES / u64::from(PULL) {
            // Each pull has its own millisecond, so that no two share a deadline.
            reserved.clear();
            leased.clear();
            group.reserve(member, PULL, None, pull, u64::MAX, &mut redelivered, &mut reserved);
            for &range in &reserved {
                kept.clear();
                kept.extend(range.first_seq..=range.last_seq);
                group.deliver(member, range, range.last_seq, &kept, pull, &mut leased);
            }
        }
        groups.push((group, member, source));
    }
    println!("lease: {:.0} ns each, timers included", per_lease(started));
    let timers: usize = groups.iter().map(|(group, ..)| group.timer_count()).sum();
    println!("{timers} timers for {} leases, {} MiB resident", GROUPS * LEASES, resident_mib());

    let started = Instant::now();
    for (group, member, source) in groups.iter_mut().take(GROUPS as usize / 2) {
        for seq in 1..=LEASES {
            let position = Position { source: *source, seq };
            group.ack(Sender::Member(*member), position);
        }
    }
    println!("ack: {:.0} ns each", per_lease(started) * 2.0);
    let started = Instant::now();
    for (group, ..) in groups.iter_mut().take(GROUPS as usize / 2) {
        group.advance(1_000_000);
    }
    println!("timer of a lease that was acked: {:.1} ns", per_lease(started) * 2.0);
    let started = Instant::now();
    for (group, ..) in groups.iter_mut().skip(GROUPS as usize / 2) {
        group.advance(1_000_000);
    }
    println!("timer of a lease that expired, with all follow-up work: {:.0} ns", per_lease(started) * 2.0);
}
