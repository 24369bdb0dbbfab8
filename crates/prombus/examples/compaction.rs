//! Measures how much cleaning slows down publishers, and how much disk space a compacted topic takes. Publishes events with
//! keys as fast as possible, alternately into a topic that keeps everything and into a compacted one.
//!
//! ```text
//! cargo run --release -p prombus --example compaction [EVENTS] [KEYS] [ROUNDS]
//! ```
//! Default: 10,000,000 events, 100,000 keys, 3 rounds.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use hdrhistogram::Histogram;
use prombus::{Bus, PublishOptions, TopicOptions, TopicRule};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BATCH: u64 = 100;
const WINDOW: usize = 16;
const SEGMENT_BYTES: u64 = 64 << 20;

struct Run {
    events_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

fn folder(name: &str) -> PathBuf {
    std::env::current_dir()
        .expect("a folder")
        .join(format!("target/tmp/compaction-{name}-{}", std::process::id()))
}

/// The disk space that the files of a folder take.
fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|it| it.blocks() * 512).sum()
}

async fn open(folder: &Path, compaction: bool) -> Bus {
    let mut builder = Bus::builder();
    if compaction {
        let options = TopicOptions { compaction: Some(true), ..TopicOptions::default() };
        builder = builder.topic(TopicRule::new("kv", options).expect("a rule"));
    }
    builder.open(folder).await.expect("the bus opens")
}

/// Publishes batches, several of them in flight, and measures the latency of each.
async fn publish(bus: &Bus, events: u64, keys: u64) -> Run {
    let payload = "p".repeat(100);
    let mut latency: Histogram<u64> = Histogram::new(3).expect("a histogram");
    let mut in_flight: VecDeque<(Instant, prombus::Publishing)> = VecDeque::new();
    let began = Instant::now();
    let mut number = 0u64;
    while number < events || !in_flight.is_empty() {
        if number < events && in_flight.len() < WINDOW {
            let mut batch = bus.batch();
            for _ in 0..BATCH.min(events - number) {
                // All keys are equally likely.
                let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let options =
                    PublishOptions { key: Some(format!("key-{}", key % keys)), ..Default::default() };
                batch.push("kv", payload.as_str(), &options).expect("an event");
                number += 1;
            }
            in_flight.push_back((Instant::now(), bus.publish_batch(batch)));
            continue;
        }
        let (at, publishing) = in_flight.pop_front().expect("something is in flight");
        publishing.await.expect("publishes");
        latency.record(at.elapsed().as_micros() as u64).expect("a time");
    }
    let seconds = began.elapsed().as_secs_f64();
    Run {
        events_per_second: events as f64 / seconds,
        p50_ms: latency.value_at_quantile(0.5) as f64 / 1000.0,
        p99_ms: latency.value_at_quantile(0.99) as f64 / 1000.0,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn remove_and_pause(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("the folder is removed");
    // The disk is busy for a while after a large deletion.
    std::thread::sleep(Duration::from_secs(5));
}

#[tokio::main]
async fn main() {
    let number =
        |at, default: u64| std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"));
    let (events, keys, rounds) = (number(1, 10_000_000), number(2, 100_000), number(3, 3));
    println!(
        "{events} events over {keys} keys, batches of {BATCH}, {WINDOW} in flight, {rounds} alternating rounds"
    );
    let (mut plain, mut compacted) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        for compaction in [false, true] {
            let name = if compaction { "compacted" } else { "everything" };
            let folder = folder(name);
            let bus = open(&folder, compaction).await;
            let run = publish(&bus, events, keys).await;
            println!(
                "round {round}, {name:>10}: {:>9.0} events/s, p50 {:.2} ms, p99 {:.2} ms, {} MiB on disk",
                run.events_per_second,
                run.p50_ms,
                run.p99_ms,
                disk_bytes(&folder) >> 20
            );
            if compaction {
                settle(&bus, &folder, keys).await;
            }
            bus.close().await.expect("closes");
            remove_and_pause(&folder);
            if compaction { &mut compacted } else { &mut plain }.push(run);
        }
    }
    let of = |runs: &[Run], value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
    println!(
        "medians, compacted against plain: throughput {:.0} % (goal: at least 70), p99 {:.2} times (goal: at most 2)",
        100.0 * of(&compacted, |run| run.events_per_second) / of(&plain, |run| run.events_per_second),
        of(&compacted, |run| run.p99_ms) / of(&plain, |run| run.p99_ms),
    );
}

/// Waits until the files are cleaned, and prints their size.
async fn settle(bus: &Bus, folder: &Path, keys: u64) {
    let state = bus.load_state("kv").await.expect("loads");
    assert_eq!(state.len() as u64, keys, "every key has its newest event");
    let record = |event: &prombus::Event| {
        event.record().map_or(0, |it| serde_json::to_string(&it).map_or(0, |it| it.len()))
    };
    // The size as records on the wire; on disk an event has a header of 64 bytes in place of id and seq.
    let live: u64 = state.iter().map(|(_, event)| record(event) as u64).sum();
    let wanted = 2 * live + 4 * SEGMENT_BYTES;
    let began = Instant::now();
    let mut least = u64::MAX;
    while began.elapsed() < Duration::from_secs(90) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        least = disk_bytes(folder);
        if least <= wanted && began.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    let figures = bus.backend().figures();
    println!(
        "          live data {} MiB; on disk {} MiB after {:.0} s (goal: {} = 2 times live data + 4 segments); {} events cleaned",
        live >> 20,
        least >> 20,
        began.elapsed().as_secs_f64(),
        wanted >> 20,
        figures.cleaned_events
    );
}
