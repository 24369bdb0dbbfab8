//! The benchmark of the original sketch: publishes events one after the other, consumes them in the same process, and
//! measures the time from publish to delivery.
//!
//! ```text
//! cargo run --release -p prombus --example seeds_bench            # 100,000 events in memory
//! N=1000000 TOPIC=my.topic cargo run --release -p prombus --example seeds_bench
//! DATA=./prombus-data IN_FLIGHT=1024 cargo run --release -p prombus --example seeds_bench   # on disk
//! ```

#![allow(clippy::print_stdout, reason = "the program prints a report")]

use parking_lot::Mutex;
use prombus::{Bus, DeliveryContext, Event};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

#[derive(Serialize, Deserialize)]
struct Tick {
    i: u64,
    /// When it was published, in nanoseconds since the start.
    t0: u64,
}

/// The figures that the sketch reports, in milliseconds, and the total time.
#[derive(Serialize)]
struct Report {
    n: usize,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    avg: f64,
    total_ms: f64,
    mps: f64,
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> Result<T, Failure> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name}={text:?} is not a number").into()),
        Err(_) => Ok(default),
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let n: u64 = setting("N", 100_000)?;
    let in_flight: usize = setting("IN_FLIGHT", 1)?;
    let topic = std::env::var("TOPIC").unwrap_or_else(|_| "bench.topic".to_owned());
    let bus = match std::env::var_os("DATA") {
        Some(folder) => Bus::open(folder).await?,
        None => Bus::memory(),
    };
    let start = Instant::now();
    let latencies: Arc<Mutex<Vec<Duration>>> = Arc::new(Mutex::new(Vec::with_capacity(n as usize)));
    let sink = Arc::clone(&latencies);
    let handler = move |event: Event, _: DeliveryContext| {
        let tick = event.json::<Tick>();
        let now = start.elapsed();
        let taken = tick.map(|tick| sink.lock().push(now.saturating_sub(Duration::from_nanos(tick.t0))));
        async move { taken }
    };
    // A new name for every run: an existing group would continue at its old position.
    let group = format!("bench-{}", std::process::id());
    let subscribe = bus.subscribe(&topic, group).batch_size(1_000);
    subscribe.handler(handler).await?;

    let mut window = VecDeque::with_capacity(in_flight);
    for i in 0..n {
        if window.len() == in_flight
            && let Some(publishing) = window.pop_front()
        {
            publishing_done(publishing).await?;
        }
        let t0 = start.elapsed().as_nanos() as u64;
        window.push_back(bus.publish(topic.as_str(), &Tick { i, t0 }).send());
    }
    for publishing in window {
        publishing_done(publishing).await?;
    }
    while (latencies.lock().len() as u64) < n {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let total = start.elapsed();

    let mut sorted = std::mem::take(&mut *latencies.lock());
    sorted.sort_unstable();
    let millis = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
    let at = |percent: usize| sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied();
    let report = Report {
        n: sorted.len(),
        p50: millis(at(50).unwrap_or_default()),
        p90: millis(at(90).unwrap_or_default()),
        p99: millis(at(99).unwrap_or_default()),
        max: millis(sorted.last().copied().unwrap_or_default()),
        avg: millis(sorted.iter().sum::<Duration>() / (sorted.len().max(1) as u32)),
        total_ms: millis(total),
        mps: (n as f64 / total.as_secs_f64()).round(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(bus.close().await?)
}

async fn publishing_done(publishing: prombus::PublishOne) -> Result<(), Failure> {
    publishing.await?;
    Ok(())
}
