//! A bus in memory. Its log has no threads of its own: commits and maintenance run on the threads that append.

use prombus::engine::{LogEngine, MayBlock};
use prombus::{
    Backend as _, Bus, Clock, Limits, LocalBackend, ManualClock, PublishError, PublishOptions, Topic,
    TopicOptions, TopicRule, Uuid,
};
use std::sync::{Arc, mpsc};
use std::time::Duration;

struct InMemory {
    clock: ManualClock,
    backend: Arc<LocalBackend>,
    engine: Arc<LogEngine>,
    topic: Topic,
}

impl InMemory {
    fn new(memory_bytes: u64) -> Self {
        let clock = ManualClock::new(1_700_000_000_000);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let engine = Arc::new(LogEngine::in_memory(memory_bytes, Arc::clone(&shared)).expect("opens"));
        let backend = LocalBackend::open_without_timer(Arc::clone(&engine) as _, shared, Limits::default())
            .expect("opens");
        Self { clock, backend: Arc::new(backend), engine, topic: Topic::new("t").expect("a good name") }
    }

    fn with_rule(self, options: TopicOptions) -> Self {
        self.backend.set_topic_rules(vec![TopicRule::new("t", options).expect("a good rule")]);
        self
    }

    /// Publishes events of this size as one batch. A publish that never resolves fails the test.
    async fn publish(
        &self,
        count: usize,
        bytes: usize,
        options: &PublishOptions,
    ) -> Result<(), PublishError> {
        let payload = format!("\"{}\"", "x".repeat(bytes));
        let mut batch = self.backend.batch();
        for _ in 0..count {
            batch.push_json(self.topic.clone(), payload.as_bytes(), options).expect("fits");
        }
        let answer = tokio::time::timeout(Duration::from_secs(20), self.backend.publish(batch)).await;
        answer.expect("the publish resolves").map(drop)
    }

    /// Publishes until the memory is full.
    async fn fill(&self, bytes: usize) -> usize {
        let mut published = 0;
        loop {
            match self.publish(1, bytes, &PublishOptions::default()).await {
                Ok(()) => published += 1,
                Err(PublishError::StorageFull) => return published,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn run_maintenance(&self) {
        self.clock.advance_ms(5_000);
        self.backend.run_maintenance(MayBlock::on_this_thread()).await;
    }
}

#[tokio::test]
async fn a_first_publish_larger_than_a_commit_buffer_resolves() {
    let bus = InMemory::new(4 << 30);
    // Ten times half a mebibyte: more than the 4 MiB that a commit collects, next to the record of the new topic.
    bus.publish(10, 512 << 10, &PublishOptions::default()).await.expect("publishes");
    bus.publish(1, 10, &PublishOptions::default()).await.expect("the next publish works too");
}

#[tokio::test]
async fn large_publishes_one_after_another_find_prepared_segments() {
    let bus = InMemory::new(4 << 30);
    for _ in 0..4 {
        bus.publish(40, 1_000_000, &PublishOptions::default()).await.expect("publishes");
    }
}

#[tokio::test]
async fn a_full_memory_accepts_events_again_when_its_topic_is_deleted() {
    let bus = InMemory::new(16 << 20);
    let first = bus.fill(10_000).await;
    assert!(first > 300, "{first} events fit");
    bus.backend.delete_topic(&bus.topic).await.expect("deletes");
    bus.run_maintenance().await;
    let second = bus.fill(10_000).await;
    assert!(second * 10 > first * 7, "{second} events fit after the deletion, {first} before");
}

#[tokio::test]
async fn a_full_memory_accepts_events_again_after_retention() {
    let options = TopicOptions { retention_ms: Some(60_000), ..TopicOptions::default() };
    let bus = InMemory::new(16 << 20).with_rule(options);
    let first = bus.fill(10_000).await;
    bus.clock.advance_ms(120_000);
    bus.run_maintenance().await;
    let second = bus.fill(10_000).await;
    assert!(second * 10 > first * 7, "{second} events fit after retention, {first} before");
}

#[tokio::test]
async fn a_full_memory_is_compacted() {
    let options = TopicOptions { compaction: Some(true), ..TopicOptions::default() };
    let bus = InMemory::new(16 << 20).with_rule(options);
    let keyed = |n: usize| PublishOptions { key: Some(format!("k{n}")), ..PublishOptions::default() };
    // Two of five events are live, in every segment.
    let mut published = 0;
    while bus.publish(1, 10_000, &keyed(if published % 5 < 2 { published } else { 0 })).await.is_ok() {
        published += 1;
    }
    for _ in 0..3 {
        bus.run_maintenance().await;
    }
    let mut more = 0;
    while bus.publish(1, 10_000, &keyed(0)).await.is_ok() && more < published {
        more += 1;
    }
    assert!(more * 3 > published, "{more} events fit after compaction, {published} before");
}

#[tokio::test]
async fn ids_of_events_that_are_gone_do_not_fill_the_memory() {
    let options = TopicOptions { retention_ms: Some(1_000), ..TopicOptions::default() };
    let bus = InMemory::new(2 << 20).with_rule(options);
    // Five times the memory in ids alone.
    for round in 0..300_u64 {
        let mut batch = bus.backend.batch();
        for n in 0..1_000_u64 {
            let id = Uuid::from_u64_pair(round + 1, n + 1);
            let options = PublishOptions { id: Some(id), ..PublishOptions::default() };
            batch.push_json(bus.topic.clone(), b"1", &options).expect("fits");
        }
        bus.backend.publish(batch).await.expect("there is room for events");
        bus.run_maintenance().await;
    }
}

/// Group records that find no room must not keep the cleaning thread in an endless retry.
#[test]
fn refused_group_records_do_not_keep_a_full_memory_from_being_cleaned() {
    let (sender, receiver) = mpsc::channel();
    // On a separate thread, because the failure would be an endless loop.
    let work = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let options = TopicOptions { retention_ms: Some(60_000), ..TopicOptions::default() };
            let bus = InMemory::new(1 << 20).with_rule(options);
            for _ in 0..40 {
                bus.publish(100, 10, &PublishOptions::default()).await.expect("publishes");
            }
            let front = Bus::with_backend(Arc::clone(&bus.backend) as _);
            let subscribe = front.subscribe("t", "g").from_earliest().max_in_flight(4_000);
            let mut subscription = subscribe.ack_timeout(Duration::from_secs(3_600)).await.expect("joins");
            let mut deliveries = Vec::new();
            while deliveries.len() < 4_000 {
                deliveries.push(subscription.next().await.expect("open").expect("reads"));
            }
            bus.fill(1_000).await;
            let mut acked = 0;
            while deliveries[acked].ack().await.is_ok() {
                acked += 1;
            }
            assert!(acked > 100, "the reserve takes some records: {acked}");
            bus.clock.advance_ms(120_000);
            bus.run_maintenance().await;
            bus.run_maintenance().await;
            bus.publish(1, 1_000, &PublishOptions::default()).await.expect("there is room again");
        });
        let _ = sender.send(());
    });
    let ended = receiver.recv_timeout(Duration::from_secs(60));
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "cleaning does not end");
    work.join().expect("no check failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn publishes_of_many_threads_all_resolve() {
    for _ in 0..20 {
        let bus = Arc::new(InMemory::new(256 << 20));
        let publishers: Vec<_> = (0..8)
            .map(|_| {
                let bus = Arc::clone(&bus);
                tokio::spawn(async move {
                    for _ in 0..500 {
                        bus.publish(1, 10, &PublishOptions::default()).await.expect("publishes");
                    }
                })
            })
            .collect();
        for publisher in publishers {
            publisher.await.expect("no publish is lost");
        }
        assert_eq!(bus.engine.log().last_seq(bus.engine.log().topic("t").expect("there")), 4_000);
    }
}
