//! Tombstones that have done their work go, however many there are and whatever is in their way.

use prombus::store::MemoryStore;
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
        let clock = ManualClock::new(1_700_000_000_000);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = Arc::new(MemoryStore::new(u64::MAX, Arc::clone(&shared)));
        let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
        let options = TopicOptions {
            compaction: Some(true),
            tombstone_ms: Some(1_000),
            snapshot_interval_ms: Some(0),
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

    /// Keys that are there, deleted ones too.
    async fn keys(&self) -> usize {
        let limit = PullLimit { events: 1_000_000, bytes: usize::MAX };
        let query = LatestQuery { with_deleted: true, limit, ..LatestQuery::default() };
        self.backend.latest(&self.topic, query).await.expect("reads").events.items().len()
    }
}

#[tokio::test]
async fn tombstones_that_must_stay_do_not_keep_later_ones() {
    let it = Compacted::new();
    // So much lives that what the tombstones delete is not worth cleaning yet: older events of their keys are still there.
    let large = format!("\"{}\"", "x".repeat(500_000));
    it.publish(&large, ["large".to_owned()].into_iter()).await;
    it.publish("1", (0..1_200).map(|number| format!("stays-{number}"))).await;
    it.publish("null", (0..1_200).map(|number| format!("stays-{number}"))).await;
    it.publish("null", (0..300).map(|number| format!("goes-{number}"))).await;
    it.clock.advance_ms(2_000);
    it.backend.keep_house();
    assert_eq!(it.keys().await, 1 + 1_200);
}

#[tokio::test]
async fn many_expired_tombstones_go_in_a_few_rounds_one_right_after_another() {
    let it = Compacted::new();
    it.publish("1", ["live".to_owned()].into_iter()).await;
    for part in 0..10 {
        it.publish("null", (0..4_000).map(|number| format!("{part}-{number}"))).await;
    }
    it.clock.advance_ms(2_000);
    let mut rounds = 1;
    while it.backend.keep_house() == 0 {
        rounds += 1;
        assert!(rounds <= 10, "{} keys are left", it.keys().await);
    }
    assert_eq!(it.keys().await, 1, "after {rounds} rounds");
    assert!(rounds > 1, "a round does not do everything at once");
}
