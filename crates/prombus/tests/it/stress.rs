//! Many concurrent tasks on a log so small that its queue is always full: publishers, members that join, leave, pause, nack
//! and never settle, seeks, topics and groups that are created and deleted. At the end everything must have been delivered
//! and settled.
//!
//! `PROMBUS_SEED` chooses the run, `PROMBUS_STRESS_MS` its length.

use crate::folder::Folder;
use crate::support::{Random, setting};
use prombus::engine::LogEngineOptions;
use prombus::{Bus, Start, Subscription};
use prombus_log::Options;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TOPICS: [&str; 4] = ["s.a", "s.b", "s.c", "s.d"];
/// Subscription and name; the group with a pattern reads all topics.
const GROUPS: [(&str, &str); 3] = [("s.a", "one"), ("s.b", "two"), ("s.*", "all")];
/// A call that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Seen {
    /// By group, topic and seq.
    delivered: Mutex<BTreeSet<(usize, String, u64)>>,
    published: Mutex<BTreeSet<(String, u64)>>,
    is_over: AtomicBool,
    steps: AtomicU64,
}

async fn publisher(bus: Bus, seen: Arc<Seen>, mut random: Random) {
    let mut in_progress = Vec::new();
    while !seen.is_over.load(Ordering::Relaxed) {
        let mut batch = bus.batch();
        let mut topics = Vec::new();
        for _ in 0..random.between(1, 8) {
            let topic = TOPICS[random.below(4) as usize];
            let payload = "p".repeat(random.below(300) as usize);
            batch.push(topic, payload.as_str(), &Default::default()).expect("a good event");
            topics.push(topic);
        }
        let publishing = bus.publish_batch(batch);
        match random.below(10) {
            // Published without waiting for it.
            0 => drop(publishing),
            1..=5 => in_progress.push((topics, publishing)),
            _ => record(&seen, &topics, tokio::time::timeout(PATIENCE, publishing).await),
        }
        if in_progress.len() > 20 || random.one_in(20) {
            for (topics, publishing) in in_progress.drain(..) {
                record(&seen, &topics, tokio::time::timeout(PATIENCE, publishing).await);
            }
        }
        if random.one_in(4) {
            tokio::time::sleep(Duration::from_micros(random.below(3_000))).await;
        }
    }
    for (topics, publishing) in in_progress {
        record(&seen, &topics, tokio::time::timeout(PATIENCE, publishing).await);
    }
}

type Outcome = Result<Result<Vec<prombus::Published>, prombus::PublishError>, tokio::time::error::Elapsed>;

fn record(seen: &Seen, topics: &[&str], published: Outcome) {
    let published = published.expect("a publish hangs").expect("publishes");
    seen.steps.fetch_add(published.len() as u64, Ordering::Relaxed);
    let mut all = seen.published.lock().expect("no panic");
    all.extend(topics.iter().zip(published).map(|(topic, it)| ((*topic).to_owned(), it.seq)));
}

async fn join(bus: &Bus, group: usize, random: &mut Random) -> Subscription {
    let (topic, name) = GROUPS[group];
    let mut subscribe = bus
        .subscribe(topic, name)
        .from_earliest()
        .batch_size(random.between(1, 40) as u32)
        .max_in_flight(random.between(1, 80) as u32)
        .max_unsettled(random.between(50, 500) as u32)
        .max_attempts(1_000)
        .ack_timeout(Duration::from_millis(random.between(1_000, 2_000)));
    if random.one_in(4) {
        // A filter that passes everything.
        subscribe = subscribe.filter(|event| event.seq() > 0);
    }
    tokio::time::timeout(PATIENCE, subscribe.into_future()).await.expect("a subscribe hangs").expect("joins")
}

async fn member(bus: Bus, group: usize, seen: Arc<Seen>, mut random: Random) {
    let mut subscription = join(&bus, group, &mut random).await;
    while !seen.is_over.load(Ordering::Relaxed) {
        let wait = Duration::from_millis(random.between(1, 30));
        // Stop waiting now and then.
        let Ok(next) = tokio::time::timeout(wait, subscription.next()).await else { continue };
        let delivery = next.expect("the stream continues").expect("reads");
        seen.delivered.lock().expect("no panic").insert((
            group,
            delivery.topic().to_string(),
            delivery.seq(),
        ));
        let settling = match random.below(40) {
            0..=3 => Some(delivery.nack_after(Duration::from_millis(random.below(5)), "again")),
            4 => None,
            _ => Some(delivery.ack()),
        };
        if let Some(settling) = settling.filter(|_| random.one_in(6)) {
            tokio::time::timeout(PATIENCE, settling).await.expect("a settle hangs").expect("settles");
        }
        match random.below(150) {
            0 => {
                drop(subscription);
                subscription = join(&bus, group, &mut random).await;
            }
            1 => {
                let left = tokio::time::timeout(PATIENCE, subscription.unsubscribe()).await;
                left.expect("an unsubscribe hangs").expect("leaves");
                subscription = join(&bus, group, &mut random).await;
            }
            2 => {
                subscription.pause();
                tokio::time::sleep(Duration::from_millis(random.below(10))).await;
                subscription.resume();
            }
            _ => {}
        }
    }
}

async fn operator(bus: Bus, seen: Arc<Seen>, mut random: Random) {
    let mut made = 0;
    while !seen.is_over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(random.between(1, 15))).await;
        let group = random.below(3) as usize;
        let (topic, name) = GROUPS[group];
        let step = async {
            match random.below(6) {
                0 => bus.seek(topic, name, Start::Earliest).await.expect("seeks"),
                1 => {
                    let unknown = Start::AfterId(prombus::Uuid::from_u128(5));
                    bus.seek(topic, name, unknown).await.expect_err("the event does not exist");
                }
                2 => drop(bus.groups().await.expect("lists groups")),
                3 => {
                    made += 1;
                    let late = format!("s.late{}", made % 10);
                    bus.publish(late.as_str(), "late").await.expect("publishes");
                }
                4 => {
                    let mut short = bus.subscribe("s.**", "short").from_earliest().await.expect("joins");
                    drop(tokio::time::timeout(Duration::from_millis(2), short.next()).await);
                    bus.delete_group("s.**", "short").await.expect("deletes");
                }
                _ => drop(bus.get_cursor(topic, name).await.expect("looks")),
            }
        };
        tokio::time::timeout(PATIENCE, step).await.expect("an operation hangs");
    }
}

async fn drain(bus: Bus, group: usize, seen: Arc<Seen>, mut random: Random) {
    let mut subscription = join(&bus, group, &mut random).await;
    let (topic, name) = GROUPS[group];
    let began = Instant::now();
    loop {
        match tokio::time::timeout(Duration::from_millis(50), subscription.next_batch()).await {
            Ok(batch) => {
                let batch = batch.expect("reads");
                let mut delivered = seen.delivered.lock().expect("no panic");
                delivered.extend(batch.events().map(|it| (group, it.topic().to_string(), it.seq())));
                drop(delivered);
                drop(batch.ack());
            }
            Err(_) => {
                let groups = bus.groups().await.expect("lists groups");
                let info = groups.into_iter().find(|it| it.topic == topic && it.group == name);
                let info = info.expect("the group exists");
                if info.lag == 0 {
                    assert_eq!((info.in_flight, info.waiting), (0, 0));
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "group {name} on {topic} is not drained: {info:?}");
            }
        }
    }
}

async fn run(seed: u64, length: Duration) {
    let mut random = Random::new(seed);
    let folder = Folder::new();
    let builder = || {
        let log = Options {
            segment_bytes: 64 * 1024,
            reserve_bytes: 16 * 1024,
            batch_bytes: 4 * 1024,
            tail_bytes: 4 * 1024,
            checkpoint_bytes: 32 * 1024,
            ..Options::default()
        };
        Bus::builder().log(LogEngineOptions { log })
    };
    let bus = builder().open(folder.path()).await.expect("opens");
    let seen = Arc::<Seen>::default();
    for group in 0..GROUPS.len() {
        drop(join(&bus, group, &mut random).await);
    }
    let mut tasks = Vec::new();
    let mut next = || Random::new(random.next());
    for _ in 0..4 {
        tasks.push(tokio::spawn(publisher(bus.clone(), Arc::clone(&seen), next())));
    }
    for group in (0..GROUPS.len()).flat_map(|group| [group; 4]) {
        tasks.push(tokio::spawn(member(bus.clone(), group, Arc::clone(&seen), next())));
    }
    tasks.push(tokio::spawn(operator(bus.clone(), Arc::clone(&seen), next())));
    tokio::time::sleep(length).await;
    seen.is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let drains =
        (0..GROUPS.len()).map(|group| tokio::spawn(drain(bus.clone(), group, Arc::clone(&seen), next())));
    for task in drains.collect::<Vec<_>>() {
        task.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let delivered = seen.delivered.lock().expect("no panic").clone();
    for (topic, seq) in seen.published.lock().expect("no panic").iter() {
        for (group, (pattern, name)) in GROUPS.into_iter().enumerate() {
            if pattern == topic || pattern == "s.*" {
                let key = (group, topic.clone(), *seq);
                assert!(delivered.contains(&key), "seed {seed}: {name} on {pattern} never got {topic} {seq}");
            }
        }
    }
    tokio::time::timeout(PATIENCE, bus.close()).await.expect("a close hangs").expect("closes");
    drop(bus);
    // Settled events are still settled after a restart.
    let bus = builder().open(folder.path()).await.expect("opens");
    for info in bus.groups().await.expect("lists groups").iter().filter(|it| it.group != "short") {
        assert_eq!(info.lag, 0, "seed {seed}: {info:?}");
    }
    bus.close().await.expect("closes");
}

#[test]
fn many_concurrent_threads_lose_nothing_and_do_not_hang() {
    let seed = setting("PROMBUS_SEED", 1);
    let length = Duration::from_millis(setting("PROMBUS_STRESS_MS", 2_000));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.expect("a runtime").block_on(run(seed, length));
}
