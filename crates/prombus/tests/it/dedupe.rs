//! The rules that every store of marks must follow, tested with all three stores.

use crate::folder::Folder;
use prombus::consume::dedupe::{DedupeStore, MemoryDedupe, SqliteDedupe, TopicDedupe};
use prombus::{Bus, ManualClock, PullLimit, Topic, Uuid};
use std::sync::Arc;

const START_MS: i64 = 1_700_000_000_000;

/// A store, the clock that the rule moves, and the store's folder.
struct Subject {
    store: Arc<dyn DedupeStore>,
    clock: ManualClock,
    _folder: Folder,
}

async fn memory(folder: Folder, clock: ManualClock) -> Subject {
    let store = Arc::new(MemoryDedupe::new().clock(Arc::new(clock.clone())));
    Subject { store, clock, _folder: folder }
}

async fn topic(folder: Folder, clock: ManualClock) -> Subject {
    let store = TopicDedupe::open_with(&Bus::memory(), "dedupe.test", Arc::new(clock.clone())).await;
    Subject { store: Arc::new(store.expect("it opens")), clock, _folder: folder }
}

async fn sqlite(folder: Folder, clock: ManualClock) -> Subject {
    let store = SqliteDedupe::open(folder.path().join("marks.db")).expect("it opens");
    Subject { store: Arc::new(store.clock(Arc::new(clock.clone()))), clock, _folder: folder }
}

impl Subject {
    async fn seen(&self, topic: &str, group: &str, id: u128) -> bool {
        self.store.seen(topic, group, Uuid::from_u128(id)).await.expect("succeeds")
    }

    async fn mark(&self, topic: &str, group: &str, id: u128, ttl_ms: u64) {
        self.store.mark(topic, group, Uuid::from_u128(id), ttl_ms).await.expect("marks");
    }
}

async fn a_mark_belongs_to_its_topic_group_and_id(subject: Subject) {
    assert!(!subject.seen("a", "g", 1).await);
    subject.mark("a", "g", 1, 1_000).await;
    assert!(subject.seen("a", "g", 1).await);
    for (topic, group, id) in [("b", "g", 1), ("a", "h", 1), ("a", "g", 2), ("ag", "", 1), ("", "ag", 1)] {
        assert!(!subject.seen(topic, group, id).await, "{topic} {group} {id}");
    }
}

async fn a_mark_expires_after_its_ttl(subject: Subject) {
    subject.mark("a", "g", 1, 1_000).await;
    subject.mark("a", "g", 2, 5_000).await;
    subject.clock.advance_ms(999);
    assert!(subject.seen("a", "g", 1).await);
    subject.clock.advance_ms(1);
    assert!(!subject.seen("a", "g", 1).await);
    assert!(subject.seen("a", "g", 2).await);
}

async fn an_existing_mark_is_not_changed(subject: Subject) {
    subject.mark("a", "g", 1, 1_000).await;
    subject.clock.advance_ms(500);
    subject.mark("a", "g", 1, 100_000).await;
    subject.clock.advance_ms(500);
    assert!(!subject.seen("a", "g", 1).await);
}

async fn an_event_with_an_expired_mark_can_be_marked_again(subject: Subject) {
    for _ in 0..3 {
        subject.mark("a", "g", 1, 1_000).await;
        subject.clock.advance_ms(900);
        assert!(subject.seen("a", "g", 1).await);
        subject.clock.advance_ms(200);
        assert!(!subject.seen("a", "g", 1).await);
    }
}

async fn a_mark_may_last_indefinitely(subject: Subject) {
    subject.mark("a", "g", 1, u64::MAX).await;
    subject.clock.advance_ms(u64::from(u32::MAX) * 1_000);
    assert!(subject.seen("a", "g", 1).await);
}

async fn many_marks_at_once_are_all_kept(subject: Subject) {
    let mut tasks = Vec::new();
    for number in 0..200 {
        let store = Arc::clone(&subject.store);
        // Each id twice.
        tasks.push(tokio::spawn(async move {
            store.mark("a", "g", Uuid::from_u128(number / 2), 1_000).await.expect("marks");
        }));
    }
    for task in tasks {
        task.await.expect("it ends");
    }
    for id in 0..100 {
        assert!(subject.seen("a", "g", id).await, "{id}");
    }
    assert!(!subject.seen("a", "g", 100).await);
}

macro_rules! suite {
    ($($store:ident),+ => $rules:tt) => {
        $(suite! { @store $store $rules })+
    };
    (@store $store:ident [$($rule:ident),+ $(,)?]) => {
        mod $store {
            $(#[tokio::test]
            async fn $rule() {
                let clock = prombus::ManualClock::new(super::START_MS);
                super::$rule(super::$store(crate::folder::Folder::new(), clock).await).await;
            })+
        }
    };
}

suite! { memory, topic, sqlite => [
    a_mark_belongs_to_its_topic_group_and_id,
    a_mark_expires_after_its_ttl,
    an_existing_mark_is_not_changed,
    an_event_with_an_expired_mark_can_be_marked_again,
    a_mark_may_last_indefinitely,
    many_marks_at_once_are_all_kept,
] }

/// Makes marks, lets some expire, and opens the store again.
async fn mark_and_reopen(bus: &Bus, clock: &ManualClock) -> TopicDedupe {
    let open = || TopicDedupe::open_with(bus, "dedupe.test", Arc::new(clock.clone()));
    let marks = open().await.expect("it opens");
    for (id, ttl_ms) in [(1, 1_000), (2, 5_000), (3, 1_000)] {
        marks.mark("a", "g", Uuid::from_u128(id), ttl_ms).await.expect("marks");
    }
    clock.advance_ms(2_000);
    // One of the two expired marks is made again.
    marks.mark("a", "g", Uuid::from_u128(3), 5_000).await.expect("marks");
    open().await.expect("it opens again")
}

#[tokio::test]
async fn marks_in_a_topic_are_read_when_it_is_opened() {
    let (bus, clock) = (Bus::memory(), ManualClock::new(START_MS));
    let marks = mark_and_reopen(&bus, &clock).await;
    assert_eq!(marks.len(), 2);
    for (id, is_seen) in [(1, false), (2, true), (3, true)] {
        assert_eq!(marks.seen("a", "g", Uuid::from_u128(id)).await.expect("succeeds"), is_seen, "{id}");
    }
}

#[tokio::test]
async fn expired_marks_in_a_topic_get_one_tombstone_each() {
    let (bus, clock) = (Bus::memory(), ManualClock::new(START_MS));
    let marks = mark_and_reopen(&bus, &clock).await;
    clock.advance_ms(10_000);
    assert_eq!(marks.sweep().await.expect("it sweeps"), 2);
    assert!(marks.is_empty());
    drop(TopicDedupe::open_with(&bus, "dedupe.test", Arc::new(clock.clone())).await.expect("it opens"));
    let topic = Topic::new("dedupe.test").expect("a topic");
    let page = bus.read_from(&topic, 1, PullLimit::default()).await.expect("it reads");
    let tombstones: Vec<&str> = page
        .events
        .iter()
        .filter(|event| event.payload() == "null")
        .map(|event| event.key().expect("a tombstone has a key"))
        .collect();
    // Tombstones of 1, 2, and both marks of 3.
    assert_eq!((page.events.len(), tombstones.len()), (8, 4), "{:?}", page.events);
    let last_of_each: std::collections::HashMap<_, _> =
        page.events.iter().map(|event| (event.key(), event.payload())).collect();
    assert!(last_of_each.values().all(|payload| *payload == "null"), "{last_of_each:?}");
}

#[tokio::test]
async fn a_mark_of_another_store_on_the_same_topic_is_seen() {
    let bus = Bus::memory();
    let one = TopicDedupe::open(&bus, "dedupe.test").await.expect("it opens");
    let other = TopicDedupe::open(&bus, "dedupe.test").await.expect("it opens");
    let id = Uuid::from_u128(7);
    one.mark("a", "g", id, 60_000).await.expect("marks");
    assert!(other.seen("a", "g", id).await.expect("succeeds"));
    other.mark("a", "g", id, 60_000).await.expect("marks");
    let topic = Topic::new("dedupe.test").expect("a topic");
    let page = bus.read_from(&topic, 1, PullLimit::default()).await.expect("it reads");
    assert_eq!(page.events.len(), 1, "the second mark added an event");
}

#[tokio::test]
async fn marks_in_sqlite_survive_a_close_and_expired_ones_are_purged() {
    let (folder, clock) = (Folder::new(), ManualClock::new(START_MS));
    let open = || {
        let marks = SqliteDedupe::open(folder.path().join("marks.db")).expect("it opens");
        marks.clock(Arc::new(clock.clone()))
    };
    let marks = open();
    for id in 1..=3_u128 {
        marks.mark("a", "g", Uuid::from_u128(id), 1_000 * id as u64).await.expect("marks");
    }
    drop(marks);
    let marks = open();
    clock.advance_ms(2_000);
    assert_eq!(marks.purge().await.expect("it purges"), 2);
    assert!(marks.seen("a", "g", Uuid::from_u128(3)).await.expect("succeeds"));
}
