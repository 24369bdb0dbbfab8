//! Rules about state by key, and about settings and deletion of topics.

use super::probe::{next, nothing, publish, publish_numbers, soon, subscribe, take};
use crate::{
    Bus, Event, GroupError, Keys, LatestQuery, PullLimit, ReadError, Start, Topic, TopicAdminError,
    TopicOptions,
};
use std::collections::BTreeMap;

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

async fn set(bus: &Bus, name: &str, key: &str, value: &str) -> u64 {
    bus.publish(name, value).key(key).await.expect("publishes").seq
}

async fn delete(bus: &Bus, name: &str, key: &str) -> u64 {
    bus.publish_json(name, "null").key(key).await.expect("publishes").seq
}

/// The state as `key -> payload`.
async fn state_of(bus: &Bus, name: &str) -> BTreeMap<String, String> {
    let state = bus.load_state(name).await.expect("loads");
    state.iter().map(|(key, event)| (key.to_owned(), event.payload().to_owned())).collect()
}

fn wanted(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), format!("{value:?}"))).collect()
}

/// The newest event is found for given keys and for all keys; events without a key are not part of the state.
pub async fn the_newest_event_of_each_key_is_found(bus: Bus) {
    set(&bus, "kv", "a", "1").await;
    set(&bus, "kv", "b", "2").await;
    publish(&bus, "kv", "no key").await;
    set(&bus, "kv", "a", "3").await;
    let some = bus.latest_by_key("kv", ["a", "c"]).await.expect("reads");
    assert_eq!(some.len(), 1);
    assert_eq!((some["a"].seq(), some["a"].payload()), (4, "\"3\""));
    assert_eq!(state_of(&bus, "kv").await, wanted(&[("a", "3"), ("b", "2")]));
    set(&bus, "kv", "b", "4").await;
    assert_eq!(state_of(&bus, "kv").await, wanted(&[("a", "3"), ("b", "4")]));
    let state = bus.load_state("kv").await.expect("loads");
    assert_eq!(state.position().map(|position| position.seq), Some(5));
    assert!(bus.load_state("never.made").await.expect("is empty").is_empty());
    let unknown = bus.latest_by_key("never.made", ["a"]).await;
    assert_eq!(unknown.err(), Some(ReadError::UnknownTopic("never.made".to_owned())));
}

/// A tombstone deletes its key, is delivered like any event, and the key can be set again.
pub async fn null_with_a_key_deletes_the_key(bus: Bus) {
    set(&bus, "kv", "a", "1").await;
    set(&bus, "kv", "b", "1").await;
    delete(&bus, "kv", "a").await;
    assert_eq!(state_of(&bus, "kv").await, wanted(&[("b", "1")]));
    let backend = bus.backend();
    let query = LatestQuery { with_deleted: true, ..LatestQuery::default() };
    let page = backend.latest(&topic("kv"), query).await.expect("reads");
    assert_eq!((page.events.items().len(), page.key_count), (2, 1));
    let mut group = subscribe(&bus, "kv", "g").await;
    assert_eq!(take(&mut group, 3).await[2].payload(), "null");
    set(&bus, "kv", "a", "2").await;
    assert_eq!(state_of(&bus, "kv").await, wanted(&[("a", "2"), ("b", "1")]));
}

/// Load the state, then subscribe after its position: every event is either in the state or delivered.
pub async fn a_state_and_the_events_after_it_are_complete(bus: Bus) {
    for number in 0..50 {
        set(&bus, "kv", &format!("k{}", number % 7), &number.to_string()).await;
    }
    let state = bus.load_state("kv").await.expect("loads");
    let mut follower = bus.follow_state("kv").await.expect("follows");
    let after: Vec<u64> = {
        let mut after = Vec::new();
        for number in 50..60 {
            after.push(set(&bus, "kv", &format!("k{}", number % 9), &number.to_string()).await);
        }
        after.push(delete(&bus, "kv", "k0").await);
        after
    };
    let mut group = bus.subscribe("kv", "g").from(state.start()).await.expect("subscribes");
    let delivered = take(&mut group, after.len()).await;
    nothing(&mut group).await;
    assert_eq!(delivered.iter().map(|it| it.seq()).collect::<Vec<_>>(), after);
    let mut state = state;
    delivered.iter().for_each(|delivery| {
        state.apply(delivery);
    });
    for _ in &after {
        soon("the next change", follower.next()).await.expect("follows");
    }
    let now = state_of(&bus, "kv").await;
    for known in [&state, follower.state()] {
        let known = known.iter().map(|(key, event)| (key.to_owned(), event.payload().to_owned()));
        assert_eq!(known.collect::<BTreeMap<_, _>>(), now);
    }
}

/// All pages of a state have the same position. Keys that change while the state is read have events after that position.
pub async fn pages_of_a_changing_state_leave_nothing_out(bus: Bus) {
    for number in 0..40 {
        set(&bus, "kv", &format!("k{number}"), "old").await;
    }
    let kv = topic("kv");
    let limit = PullLimit { events: 3, bytes: 1 << 20 };
    let mut query = LatestQuery { limit, ..LatestQuery::default() };
    let (mut loaded, mut position, mut pages) = (BTreeMap::new(), None, 0);
    loop {
        let page = bus.backend().latest(&kv, query.clone()).await.expect("reads");
        position = position.or(page.position);
        query.to_seq = position.map(|position| position.seq);
        for item in page.events.items() {
            assert!(item.seq <= 40, "no event after the position");
            let key = page.events.key(item).expect("has a key").to_owned();
            assert!(loaded.insert(key, "old").is_none(), "no key twice");
        }
        // Change a key of a later page and a key of an earlier page, and add a new key.
        set(&bus, "kv", &format!("k{}", 39 - pages), "new").await;
        set(&bus, "kv", &format!("k{pages}"), "new").await;
        set(&bus, "kv", &format!("n{pages}"), "new").await;
        pages += 1;
        let Some(next) = page.next_after else { break };
        query.after_seq = next;
    }
    assert!(pages > 5, "{pages} pages");
    let position = position.expect("there are events");
    let mut group = bus.subscribe("kv", "g").from(Start::AfterId(position.id)).await.expect("subscribes");
    for delivery in take(&mut group, 3 * pages).await {
        loaded.insert(delivery.key().expect("has a key").to_owned(), "new");
    }
    let now = state_of(&bus, "kv").await;
    let loaded: BTreeMap<String, String> =
        loaded.into_iter().map(|(key, value)| (key, format!("{value:?}"))).collect();
    assert_eq!(loaded, now);
}

/// The state at an earlier time is found by the `ts` of events, also if an event was published late.
pub async fn the_state_of_an_earlier_time_is_found(bus: Bus) {
    for (key, value, ts) in [("a", "1", 100), ("b", "2", 200), ("a", "3", 300), ("b", "late", 150)] {
        bus.publish("kv", value).key(key).ts(ts).await.expect("publishes");
    }
    let at = async |ts: i64| {
        let query = LatestQuery { at_ts: Some(ts), ..LatestQuery::default() };
        let page = bus.backend().latest(&topic("kv"), query).await.expect("reads");
        let items = page.events.items().iter();
        let mut found: Vec<_> =
            items.map(|it| (page.events.key(it).expect("keyed").to_owned(), it.ts)).collect();
        found.sort_unstable();
        (found, page.position.map(|position| position.seq))
    };
    let pair = |key: &str, ts: i64| (key.to_owned(), ts);
    assert_eq!(at(50).await, (vec![], None));
    assert_eq!(at(100).await, (vec![pair("a", 100)], Some(1)));
    assert_eq!(at(250).await, (vec![pair("a", 100), pair("b", 150)], Some(4)));
    assert_eq!(at(300).await, (vec![pair("a", 300), pair("b", 150)], Some(4)));
    let query =
        LatestQuery { at_ts: Some(250), keys: Keys::These(vec!["a".into()]), ..LatestQuery::default() };
    let page = bus.backend().latest(&topic("kv"), query).await.expect("reads");
    assert_eq!(page.events.items().len(), 1);
}

/// A deleted topic cannot be read and is not listed; a publish to its name creates a new topic.
pub async fn a_deleted_topic_is_gone_and_starts_again_at_1(bus: Bus) {
    publish_numbers(&bus, "orders", 5).await;
    set(&bus, "orders", "k", "v").await;
    let orders = topic("orders");
    bus.delete_topic(&orders).await.expect("deletes");
    assert!(bus.topics().await.expect("lists").is_empty());
    let read = bus.read(&orders, Start::Earliest, PullLimit::default()).await;
    assert_eq!(read.err(), Some(ReadError::UnknownTopic("orders".to_owned())));
    assert!(bus.load_state("orders").await.expect("loads").is_empty());
    let again = bus.delete_topic(&orders).await;
    assert_eq!(again.err(), Some(TopicAdminError::UnknownTopic("orders".to_owned())));
    assert_eq!(publish(&bus, "orders", "new").await.seq, 1);
    let page = bus.read(&orders, Start::Earliest, PullLimit::default()).await.expect("reads");
    assert_eq!(page.events.iter().map(Event::payload).collect::<Vec<_>>(), ["\"new\""]);
    assert!(bus.load_state("orders").await.expect("loads").is_empty());
}

/// When a topic is deleted, groups that read only this topic end. A pattern group continues with its other topics, and with
/// the deleted topic when that is created again.
pub async fn deleting_a_topic_ends_its_groups_and_no_others(bus: Bus) {
    publish_numbers(&bus, "a.x", 2).await;
    publish_numbers(&bus, "a.y", 2).await;
    let mut own = subscribe(&bus, "a.x", "own").await;
    let mut pattern = subscribe(&bus, "a.*", "all").await;
    next(&mut own).await;
    let held = take(&mut pattern, 4).await;
    bus.delete_topic(&topic("a.x")).await.expect("deletes");
    let ended = soon("the end of the group", async {
        loop {
            match own.next().await {
                Some(Ok(_)) => {}
                other => break other,
            }
        }
    });
    assert!(matches!(ended.await, None | Some(Err(GroupError::Deleted))));
    for delivery in &held {
        let is_deleted = delivery.topic().as_str() == "a.x";
        let settled = soon("an ack", delivery.ack()).await.expect("acks");
        assert_eq!(settled.stale, is_deleted, "{delivery:?}");
    }
    publish(&bus, "a.x", "again").await;
    let delivery = next(&mut pattern).await;
    assert_eq!((delivery.topic().as_str(), delivery.seq()), ("a.x", 1));
    let groups = bus.groups().await.expect("lists");
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0].topics.len(), 2, "{:?}", groups[0].topics);
    assert_eq!(groups[0].lag, 1);
    // Events of other topics that were pulled but not handed out stay with the member.
    delivery.ack().await.expect("acks");
    publish_numbers(&bus, "a.x", 2).await;
    publish_numbers(&bus, "a.y", 5).await;
    next(&mut pattern).await;
    bus.delete_topic(&topic("a.x")).await.expect("deletes");
    let mut seqs = Vec::new();
    while seqs.last() != Some(&7) {
        let delivery = next(&mut pattern).await;
        if delivery.topic().as_str() == "a.y" {
            assert_eq!(delivery.attempt(), 1);
            seqs.push(delivery.seq());
        }
    }
    assert!(seqs.is_sorted() && seqs.len() >= 4, "{seqs:?}");
}

/// A publish while its topic is deleted goes to the deleted topic or to a new one of that name, and resolves.
pub async fn publishes_resolve_while_their_topic_is_deleted(bus: Bus) {
    let busy = topic("busy");
    let publisher = {
        let bus = bus.clone();
        tokio::spawn(async move {
            for number in 0..300 {
                bus.publish("busy", &number).await.expect("publishes");
                tokio::task::yield_now().await;
            }
        })
    };
    let mut deleted = 0;
    while !publisher.is_finished() {
        deleted += u32::from(bus.delete_topic(&busy).await.is_ok());
        tokio::task::yield_now().await;
    }
    soon("the publisher", publisher).await.expect("does not panic");
    assert!(deleted > 0, "nothing was deleted in between");
    publish(&bus, "busy", "last").await;
    let page = bus.read(&busy, Start::Earliest, PullLimit::default()).await.expect("reads");
    assert_eq!(page.events.last().map(|event| event.payload().to_owned()).as_deref(), Some("\"last\""));
}

/// Options of a topic are checked, apply at once, and can be reset.
pub async fn options_of_a_topic_are_set_and_shown(bus: Bus) {
    let orders = topic("orders");
    let options =
        TopicOptions { retention_ms: Some(60_000), compaction: Some(true), ..TopicOptions::default() };
    // This also works before its first event: the topic is created.
    assert_eq!(bus.set_topic(&orders, options.clone()).await, Ok(true));
    let details = bus.backend().topic_details(&orders).await.expect("reads").expect("is there");
    assert_eq!((&details.own, details.info.last_seq), (&options, 0));
    publish(&bus, "orders", 1).await;
    assert_eq!(bus.set_topic(&orders, options.clone()).await, Ok(false));
    let details = bus.backend().topic_details(&orders).await.expect("reads").expect("is there");
    assert_eq!((details.own, details.info.last_seq, details.info.events), (options.clone(), 1, 1));
    assert!(details.info.bytes > 0);
    let settings = details.settings;
    assert_eq!((settings.retention_ms, settings.compaction), (Some(60_000), true));
    assert_eq!(settings.snapshot_topic, Topic::new("orders.snapshot").ok());
    let bad = TopicOptions { retention_ms: Some(0), ..TopicOptions::default() };
    assert!(matches!(bus.set_topic(&orders, bad).await, Err(TopicAdminError::Setting(_))));
    // Snapshots in the topic itself would be included in further snapshots.
    let itself = TopicOptions { snapshot_topic: Some("orders".to_owned()), ..options };
    assert!(matches!(bus.set_topic(&orders, itself).await, Err(TopicAdminError::Setting(_))));
    assert!(bus.topic_settings("orders").compaction);
    bus.set_topic(&orders, TopicOptions::default()).await.expect("resets");
    assert!(!bus.topic_settings("orders").compaction);
    assert!(bus.backend().topic_details(&topic("other")).await.expect("reads").is_none());
}

/// `max_attempts` of a topic applies to members that do not set their own.
pub async fn max_attempts_of_a_topic_applies_to_new_members(bus: Bus) {
    publish(&bus, "orders", 1).await;
    let options = TopicOptions { max_attempts: Some(2), ..TopicOptions::default() };
    bus.set_topic(&topic("orders"), options).await.expect("sets");
    let mut group = subscribe(&bus, "orders", "g").await;
    assert_eq!(next(&mut group).await.context().max_attempts, 2);
    let own = bus.subscribe("orders", "own").from_earliest().max_attempts(9).await;
    assert_eq!(next(&mut own.expect("subscribes")).await.context().max_attempts, 9);
}
