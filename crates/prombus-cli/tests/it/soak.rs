//! Test of a fixed publish rate over a long time, with a group that keeps up, a slow group, and a client that never reads: the
//! server's memory stays flat, nothing is lost, and the fast group is not affected by the others.
//!
//! `PROMBUS_SOAK_SECONDS=600` runs the long form, at 20,000 events per second unless `PROMBUS_SOAK_RATE` is set.

mod fast;
mod memory;
mod others;
mod publisher;

use crate::http_client::get_json;
use crate::long_form::{alone, asked, wait_until};
use crate::serving::{Serving, serve};
use crate::support::{TempFolder, run};
use memory::Samples;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const TOPIC: &str = "soak";

/// State shared by all tasks.
struct World {
    address: std::net::SocketAddr,
    rate: u64,
    /// Payloads contain times in microseconds since this instant.
    began: Instant,
    fast_received: AtomicU64,
    deaf_closed: AtomicU64,
    is_over: AtomicBool,
}

impl World {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

#[test]
fn memory_stays_flat_and_nothing_is_lost_under_a_steady_load() {
    alone(soak());
}

async fn soak() {
    let seconds = asked("PROMBUS_SOAK_SECONDS");
    let (seconds, rate, stall_ms) = match seconds {
        Some(seconds) => (seconds, asked("PROMBUS_SOAK_RATE").unwrap_or(20_000), 30_000),
        None => (5, asked("PROMBUS_SOAK_RATE").unwrap_or(5_000), 1_500),
    };
    let folder = TempFolder::new();
    let mut command = serve(&folder, &["--log", "warn"]);
    command.env("PROMBUS_LIMITS_STALL_TIMEOUT_MS", stall_ms.to_string());
    let serving = block_in_place(|| Serving::start(command));
    let world = Arc::new(World {
        address: serving.address(),
        rate,
        began: Instant::now(),
        fast_received: AtomicU64::new(0),
        deaf_closed: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let fast = tokio::spawn(fast::consume(Arc::clone(&world), fast::subscribe(&world).await));
    let slow = tokio::spawn(others::slow(Arc::clone(&world)));
    let deaf = tokio::spawn(others::deaf(Arc::clone(&world)));
    let publisher = tokio::spawn(publisher::publish(Arc::clone(&world), seconds));

    let mut samples = Samples::default();
    while !publisher.is_finished() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        samples.add(serving.memory().resident_bytes);
    }
    let publishing = publisher.await.unwrap();
    let published = publishing.count;
    wait_until("the fast group has everything", Duration::from_secs(60), async || {
        world.fast_received.load(Ordering::SeqCst) >= published
    })
    .await;
    wait_until("the deaf client is closed", Duration::from_secs(90), async || {
        world.deaf_closed.load(Ordering::SeqCst) > 0
    })
    .await;
    let topics = block_in_place(|| get_json(&world.address.to_string(), "/topics"));
    world.is_over.store(true, Ordering::SeqCst);
    let (fast, slow) = (fast.await.unwrap(), slow.await.unwrap());
    deaf.await.unwrap();
    let deaf = world.deaf_closed.load(Ordering::SeqCst);
    let processor_seconds = serving.processor_seconds();
    let peak_bytes = serving.memory().peak_bytes;
    block_in_place(|| serving.stop());

    let took = publishing.took.as_secs_f64();
    println!(
        "soak: {published} publishes of {} bytes in {took:.1} s ({:.0}/s), all OK; the server used {:.2} cores",
        publisher::PAYLOAD_BYTES,
        published as f64 / took,
        processor_seconds / world.began.elapsed().as_secs_f64()
    );
    println!("soak: publish to OK: {}", publishing.latency);
    println!("soak: publish to fast group: {}", fast.latency);
    println!(
        "soak: the slow group received {slow} in order, without a gap; the deaf client was closed {deaf} times"
    );
    println!("soak: topics at the end: {topics}");
    samples.print(peak_bytes);
    assert_eq!(fast.count, published);
    assert!(slow > 0 && slow < published);
    if seconds >= 60 {
        samples.check_flat();
    }
    let ran = run(&["verify", "--data", folder.path().join("data").to_str().unwrap()]);
    println!("soak: verify: {}", ran.stdout.trim().lines().last().unwrap_or_default());
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
