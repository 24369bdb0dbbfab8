//! Kills the database server repeatedly with kill -9, under load.

use crate::engines::{connect, open_bus, read_numbers};
use crate::servers::{Mongod, free_port, temporary_folder};
use prombus::{PublishOptions, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KILLS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_server_loses_nothing_that_was_answered() {
    let mut server = Mongod::start(&temporary_folder("killed"), free_port(), None);
    let url = format!("mongodb://127.0.0.1:{}/?serverSelectionTimeoutMS=30000", server.port);
    let store = connect(&url, "killed").await;
    let bus = open_bus(&store, 1).await;
    let (is_over, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let answers = Arc::new(AtomicU64::new(0));
    let publishers: Vec<_> = (0..4)
        .map(|publisher| {
            let (bus, is_over, next) = (bus.clone(), Arc::clone(&is_over), Arc::clone(&next));
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let mut answered = Vec::new();
                while !is_over.load(Ordering::SeqCst) {
                    let first = next.fetch_add(50, Ordering::SeqCst);
                    let mut batch = bus.batch();
                    for number in first..first + 50 {
                        // Half of them have publishers' ids. When a commit is sent again, its own ids must not count as duplicates.
                        let id = (publisher % 2 == 0).then(|| Uuid::from_u128(u128::from(number) << 64 | 1));
                        batch.push("a", &number, &PublishOptions { id, ..Default::default() }).unwrap();
                    }
                    // During a long outage the result is `unavailable`; then the outcome is unknown.
                    if let Ok(published) = bus.publish_batch(batch).await {
                        assert!(published.iter().all(|it| !it.duplicate), "{published:?}");
                        answered.extend(published.iter().map(|it| it.seq).zip(first..));
                        answers.fetch_add(1, Ordering::SeqCst);
                    }
                }
                answered
            })
        })
        .collect();
    let mut outages = Vec::new();
    for round in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(100 + 37 * (round as u64 % 7))).await;
        server.kill();
        let killed = Instant::now();
        server.restart();
        let before = answers.load(Ordering::SeqCst);
        while answers.load(Ordering::SeqCst) == before {
            assert!(
                killed.elapsed() < Duration::from_secs(60),
                "publishes did not resume after kill {round}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        outages.push(killed.elapsed().as_millis());
    }
    is_over.store(true, Ordering::SeqCst);
    let (mut answered, mut count) = (BTreeMap::new(), 0);
    for publisher in publishers {
        let of_one = publisher.await.unwrap();
        count += of_one.len();
        answered.extend(of_one);
    }
    assert_eq!(answered.len(), count, "a seq was answered twice");
    let stored = read_numbers(&bus, "a").await;
    bus.close().await.unwrap();
    // A new leader sees the same events.
    let bus = open_bus(&store, 2).await;
    assert_eq!(read_numbers(&bus, "a").await, stored);
    let seqs: Vec<u64> = stored.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "seqs have a gap");
    let numbers: std::collections::BTreeSet<u64> = stored.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers.len(), stored.len(), "an event is stored twice");
    let stored: BTreeMap<u64, u64> = stored.into_iter().collect();
    for (seq, number) in &answered {
        assert_eq!(stored.get(seq), Some(number), "an answered event is not there");
    }
    outages.sort_unstable();
    println!(
        "{KILLS} kills: {} answered, {} stored, outages {} to {} ms",
        answered.len(),
        stored.len(),
        outages[0],
        outages[outages.len() - 1]
    );
}
