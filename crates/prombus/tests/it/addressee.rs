//! Events that are addressed to one group, and closed dead letters, over restarts and compaction, and in a folder of the
//! current version. `PROMBUS_WRITE_FIXTURE=1` writes the fixture if it does not exist.

use crate::folder::Folder;
use prombus::engine::{LetterClosing, LogEngine, LogEngineOptions, MayBlock, StateFold, StateRecord};
use prombus::{
    Addressee, Backend as _, Bus, BusBuilder, Clock, Event, GroupSpec, Limits, LocalBackend, ManualClock,
    MemberOptions, PublishOptions, PullLimit, SubscribeOptions, Topic, TopicOptions, TopicRule, Uuid,
};
use prombus_log::Options;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v3-dead-letters")
}

fn builder() -> BusBuilder {
    let log = Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        checkpoint_bytes: 4 * 1024,
        ..Options::default()
    };
    Bus::builder().log(LogEngineOptions { log })
}

/// Three letters of the group billing: the first is redriven to billing, the second discarded. Another group is paused.
async fn write(folder: &Path) {
    let bus = builder().open(folder).await.expect("opens");
    bus.subscribe("orders", "audit")
        .from_earliest()
        .await
        .expect("joins")
        .unsubscribe()
        .await
        .expect("leaves");
    let billing = bus.subscribe("orders", "billing").from_earliest().max_attempts(1);
    let mut billing = billing.await.expect("joins");
    for number in 1..=3 {
        bus.publish("orders", &number).key("k").await.expect("publishes");
        billing.next().await.expect("an event").expect("reads").nack("boom").await.expect("nacks");
    }
    let letters = topic("dlq.orders");
    bus.backend().arrival(&letters, 3).await.expect("arrives");
    let page = bus.read_from(&letters, 1, PullLimit::default()).await.expect("reads");
    let ids: Vec<Uuid> = page.events.iter().map(Event::id).collect();
    bus.publish("orders", "again").key("k").addressee("orders", "billing").await.expect("publishes");
    for (id, closing) in [(ids[0], LetterClosing::Redriven), (ids[1], LetterClosing::Discarded)] {
        bus.backend().close_dead_letters(&letters, &[id], closing).await.expect("closes");
    }
    billing.unsubscribe().await.expect("leaves");
    bus.subscribe("orders", "paused").await.expect("joins").unsubscribe().await.expect("leaves");
    bus.pause_group("orders", "paused").await.expect("pauses");
    bus.close().await.expect("closes");
}

/// The state that `write` leaves, after any number of restarts.
async fn check(folder: &Path) {
    let bus = builder().open(folder).await.expect("opens");
    let states = bus.backend().dead_letters(&topic("dlq.orders")).expect("the topic exists");
    assert_eq!((states.open, states.redriven, states.discarded), (1, vec![(1, 1)], vec![(2, 2)]));
    assert_eq!(bus.latest_by_key("orders", ["k"]).await.expect("reads")["k"].payload(), "3");
    let mut billing = bus.subscribe("orders", "billing").await.expect("joins");
    let delivery = billing.next().await.expect("an event").expect("reads");
    let record = delivery.record().expect("a record");
    assert_eq!((delivery.seq(), record.addressee), (4, Some(Addressee::new("orders", "billing"))));
    drop(delivery);
    billing.unsubscribe().await.expect("leaves");
    let mut audit = bus.subscribe("orders", "audit").batch_size(10).await.expect("joins");
    let batch = audit.next_batch().await.expect("reads");
    assert_eq!(batch.iter().map(|it| it.seq()).collect::<Vec<_>>(), [1, 2, 3]);
    drop(batch);
    audit.unsubscribe().await.expect("leaves");
    let paused = bus.group("orders", "paused").await.expect("reads").expect("the group exists");
    assert!(paused.is_paused);
    bus.close().await.expect("closes");
}

#[tokio::test]
async fn addressees_and_closed_letters_survive_restarts() {
    let folder = Folder::new();
    write(folder.path()).await;
    check(folder.path()).await;
    check(folder.path()).await;
}

#[tokio::test]
async fn the_fixture_is_written_when_asked() {
    if std::env::var_os("PROMBUS_WRITE_FIXTURE").is_some() && !fixture().exists() {
        write(&fixture()).await;
    }
}

#[tokio::test]
async fn the_fixture_of_version_3_opens() {
    let copy = Folder::new();
    for entry in std::fs::read_dir(fixture()).expect("the fixture exists") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copies");
    }
    check(copy.path()).await;
}

/// A version that does not know a feature of the store must not open it.
#[test]
fn an_unknown_feature_makes_the_state_unreadable() {
    let fold = StateFold::default();
    let record = StateRecord::Requires { feature: "addressee".to_owned() };
    let mut body = Vec::new();
    record.put(&mut body);
    fold.apply_record(record.tag(), &body);
    assert!(fold.all().is_ok());
    assert_eq!(fold.to_bytes()[0], 3, "versions up to 2 refuse the checkpoint");
    let record = StateRecord::Requires { feature: "later".to_owned() };
    body.clear();
    record.put(&mut body);
    fold.apply_record(record.tag(), &body);
    let error = fold.all().expect_err("the feature is unknown");
    assert!(error.contains("\"later\"") && error.contains("newer prombus"), "{error}");
}

/// Compaction neither removes an addressed event, nor removes an older event of its key because of it.
#[tokio::test]
async fn compaction_ignores_addressed_events() {
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = Arc::new(LogEngine::in_memory(16 << 20, Arc::clone(&shared)).expect("opens"));
    let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
    let options =
        TopicOptions { compaction: Some(true), snapshot_interval_ms: Some(0), ..TopicOptions::default() };
    backend.set_topic_rules(vec![TopicRule::new("t", options).expect("a good rule")]);
    let spec = GroupSpec::from_options(
        prombus::Pattern::new("t").expect("a pattern"),
        prombus::GroupName::new("g").expect("a name"),
        &SubscribeOptions::default(),
    );
    let joined = backend.join(spec.expect("a group"), MemberOptions::default()).await.expect("joins");
    let publish = async |payload: String, key: &str, is_addressed: bool| {
        let addressee = is_addressed.then(|| Addressee::new("t", "g"));
        let options = PublishOptions { key: Some(key.to_owned()), addressee, ..PublishOptions::default() };
        let mut batch = backend.batch();
        batch.push_json(topic("t"), payload.as_bytes(), &options).expect("fits");
        backend.publish(batch).await.expect("publishes")[0].seq
    };
    let filler = format!("\"{}\"", "x".repeat(10_000));
    let only = publish("1".to_owned(), "only", false).await;
    let copy = publish("2".to_owned(), "only", true).await;
    let replaced = publish(filler.clone(), "changing", false).await;
    // Several segments: the one that is still growing is not cleaned.
    for _ in 0..800 {
        publish(filler.clone(), "changing", false).await;
    }
    clock.advance_ms(3_600_000);
    for _ in 0..5 {
        backend.run_maintenance(MayBlock::on_this_thread()).await;
        clock.advance_ms(3_600_000);
    }
    let chunk = backend.read(&topic("t"), 1, PullLimit::default()).await.expect("reads");
    let seqs: Vec<u64> = chunk.events.items().iter().map(|item| item.seq).collect();
    assert!(seqs.starts_with(&[only, copy]) && !seqs.contains(&replaced), "{seqs:?}");
    drop(joined);
}
