//! Tombstones that are not needed any more are removed, however many there are, even next to tombstones that must stay.

use prombus::engine::{LogEngine, MayBlock};
use prombus::{
    Backend as _, Clock, LatestQuery, Limits, LocalBackend, ManualClock, PublishOptions, PullLimit, Topic,
    TopicOptions, TopicRule,
};
use std::sync::Arc;

struct Compacted {
    clock: ManualClock,
    backend: LocalBackend,
    topic: Topic,
}

impl Compacted {
    fn new() -> Self {
        Self::with_snapshots(0)
    }

    fn with_snapshots(snapshot_interval_ms: u64) -> Self {
        Self::within(u64::MAX, snapshot_interval_ms)
    }

    /// The size of a segment is an eighth of the memory.
    fn within(memory_bytes: u64, snapshot_interval_ms: u64) -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = Arc::new(LogEngine::in_memory(memory_bytes, Arc::clone(&shared)).expect("opens"));
        let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
        let options = TopicOptions {
            compaction: Some(true),
            tombstone_ms: Some(1_000),
            snapshot_interval_ms: Some(snapshot_interval_ms),
            ..TopicOptions::default()
        };
        backend.set_topic_rules(vec![TopicRule::new("t", options).expect("a good rule")]);
        Self { clock, backend, topic: Topic::new("t").expect("a good name") }
    }

    async fn publish(&self, payload: &str, keys: impl Iterator<Item = String>) {
        let mut batch = self.backend.batch();
        for key in keys {
            let options = PublishOptions { key: Some(key), ..PublishOptions::default() };
            batch.push_json(self.topic.clone(), payload.as_bytes(), &options).expect("fits");
        }
        self.backend.publish(batch).await.expect("publishes");
    }

    /// The number of keys, deleted ones included.
    async fn keys(&self) -> usize {
        self.keys_of(&self.topic).await
    }

    async fn keys_of(&self, topic: &Topic) -> usize {
        let limit = PullLimit { events: 1_000_000, bytes: usize::MAX };
        let query = LatestQuery { with_deleted: true, limit, ..LatestQuery::default() };
        self.backend.latest(topic, query).await.expect("reads").events.items().len()
    }
}

#[tokio::test]
async fn tombstones_that_must_stay_do_not_block_the_removal_of_later_ones() {
    let it = Compacted::within(16 << 20, 0);
    it.publish("1", (0..1_200).map(|number| format!("stays-{number}"))).await;
    // The tombstones are in a later segment. The older segment has so much live data that cleaning it is not worthwhile yet:
    // older events of their keys are still there.
    let large = format!("\"{}\"", "x".repeat(600_000));
    for key in ["large-1", "large-2", "large-3", "large-4"] {
        it.publish(&large, [key.to_owned()].into_iter()).await;
    }
    it.publish("null", (0..1_200).map(|number| format!("stays-{number}"))).await;
    it.publish("null", (0..300).map(|number| format!("goes-{number}"))).await;
    it.clock.advance_ms(2_000);
    it.backend.run_maintenance(MayBlock::on_this_thread()).await;
    assert_eq!(it.keys().await, 4 + 1_200);
}

#[tokio::test]
async fn many_expired_tombstones_are_removed_in_a_few_consecutive_rounds() {
    let it = Compacted::new();
    it.publish("1", ["live".to_owned()].into_iter()).await;
    for part in 0..10 {
        it.publish("null", (0..4_000).map(|number| format!("{part}-{number}"))).await;
    }
    it.clock.advance_ms(2_000);
    let mut rounds = 1;
    while it.backend.run_maintenance(MayBlock::on_this_thread()).await == 0 {
        rounds += 1;
        assert!(rounds <= 10, "{} keys are left", it.keys().await);
    }
    assert_eq!(it.keys().await, 1, "after {rounds} rounds");
    assert!(rounds > 1, "one round does not remove everything at once");
}

#[tokio::test]
async fn expired_tombstones_of_a_topic_with_snapshots_are_removed_from_both_topics() {
    let it = Compacted::with_snapshots(30_000);
    it.publish("1", ["live".to_owned()].into_iter()).await;
    it.publish("null", (0..40_000).map(|number| format!("deleted-{number}"))).await;
    for _ in 0..60 {
        it.clock.advance_ms(1_000);
        it.backend.run_maintenance(MayBlock::on_this_thread()).await;
    }
    assert_eq!(it.keys().await, 1);
    // The row of the live key, and the marker.
    let snapshots = Topic::new("t.snapshot").expect("a good name");
    assert_eq!(it.keys_of(&snapshots).await, 2);
}
