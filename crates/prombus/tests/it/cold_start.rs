//! Consumers that start cold while a publisher and the cleaner keep running: each loads the state, continues right after its
//! position, and ends with the correct state.

use crate::folder::Folder;
use crate::support::{Random, setting};
use prombus::engine::LogEngineOptions;
use prombus::{Bus, TopicOptions, TopicRule};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CONSUMERS: usize = 20;
const KEYS: u64 = 300;

type State = BTreeMap<String, String>;

async fn open(folder: &Folder) -> Bus {
    let mut log = LogEngineOptions::default();
    // Small segments, so that cleaning runs all the time.
    log.log.segment_bytes = 128 * 1024;
    log.log.checkpoint_bytes = 32 * 1024;
    log.log.tail_bytes = 32 * 1024;
    let options = TopicOptions {
        compaction: Some(true),
        tombstone_ms: Some(0),
        snapshot_interval_ms: Some(100),
        ..TopicOptions::default()
    };
    let rule = TopicRule::new("kv", options).expect("a good rule");
    Bus::builder().log(log).topic(rule).open(folder.path()).await.expect("opens")
}

/// Sets and deletes keys until `is_over`, then publishes a last event that marks the end. Returns the final state.
async fn publish_until(bus: Bus, is_over: Arc<AtomicBool>, seed: u64) -> State {
    let mut random = Random::new(seed);
    let mut state = State::new();
    let mut number = 0u64;
    while !is_over.load(Ordering::Acquire) {
        let mut batch = bus.batch();
        for _ in 0..20 {
            number += 1;
            let key = format!("k{}", random.below(KEYS));
            let mut options = prombus::PublishOptions { key: Some(key.clone()), ..Default::default() };
            options.tags.push("change".to_owned());
            if random.one_in(5) {
                batch.push("kv", &(), &options).expect("an event");
                state.remove(&key);
            } else {
                let value = format!("{number} {}", "v".repeat(100));
                batch.push("kv", value.as_str(), &options).expect("an event");
                state.insert(key, value);
            }
        }
        bus.publish_batch(batch).await.expect("publishes");
    }
    bus.publish("kv", "the end").key("end").await.expect("publishes");
    state.insert("end".to_owned(), "the end".to_owned());
    state
}

/// Loads the state, subscribes after its position, and follows to the end.
async fn consume(bus: Bus, number: usize) -> State {
    let loaded = bus.load_state("kv").await.expect("loads");
    let position = loaded.position().map_or(0, |position| position.seq);
    let mut state: State =
        loaded.iter().map(|(key, event)| (key.to_owned(), event.json().expect("a text"))).collect();
    assert!(loaded.iter().all(|(_, event)| event.seq() <= position), "no event after the position");
    // Time for the publisher and the cleaner to move past this consumer's position.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let mut group =
        bus.subscribe("kv", format!("cold-{number}")).from(loaded.start()).await.expect("subscribes");
    let mut last = position;
    while !state.contains_key("end") {
        let delivery = group.next().await.expect("continues").expect("is read");
        assert!(delivery.seq() > last, "seq {} after {last}: repeated, or out of order", delivery.seq());
        last = delivery.seq();
        let key = delivery.key().expect("has a key").to_owned();
        match delivery.json::<Option<String>>().expect("a text or nothing") {
            Some(value) => state.insert(key, value),
            None => state.remove(&key),
        };
        drop(delivery.ack());
    }
    state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_consumers_that_start_cold_one_after_another_end_with_the_right_state() {
    let folder = Folder::new();
    let bus = open(&folder).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let seed = setting("PROMBUS_SEED", 5);
    let publisher = tokio::spawn(publish_until(bus.clone(), Arc::clone(&is_over), seed));
    let mut consumers = Vec::new();
    for number in 0..CONSUMERS {
        tokio::time::sleep(Duration::from_millis(150)).await;
        consumers.push(tokio::spawn(consume(bus.clone(), number)));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    is_over.store(true, Ordering::Release);
    let expected = publisher.await.expect("no panic");
    for (number, consumer) in consumers.into_iter().enumerate() {
        let state =
            tokio::time::timeout(Duration::from_secs(60), consumer).await.expect("ends").expect("no panic");
        assert_eq!(state.len(), expected.len(), "consumer {number}, seed {seed}");
        assert!(state == expected, "consumer {number} has a wrong state, seed {seed}");
    }
    // A cleaning is counted only when it is finished, which takes a while.
    let cleaned = async {
        while bus.backend().figures().cleaned_events == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while bus.load_state("kv.snapshot").await.expect("loads").get("kv.snapshot").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cleaned)
        .await
        .expect("it was cleaned, and there was a snapshot");
    bus.close().await.expect("closes");
}
