//! Retention, compaction, tombstones and deletion, on a simulated disk where the test controls time and commits.

use crate::rig::{Rig, seqs};
use prombus::engine::Engine as _;
use prombus::{Backend as _, Start, Topic, TopicOptions, TopicRule};
use std::collections::BTreeMap;

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a good name")
}

fn rule(name: &str, options: TopicOptions) -> TopicRule {
    // No snapshots: they would wait for commits, which this test makes only between calls.
    TopicRule::new(name, TopicOptions { snapshot_interval_ms: Some(0), ..options }).expect("a good rule")
}

fn kept_for(ms: u64) -> TopicOptions {
    TopicOptions { retention_ms: Some(ms), ..TopicOptions::default() }
}

fn compacted() -> TopicOptions {
    TopicOptions { compaction: Some(true), tombstone_ms: Some(60_000), ..TopicOptions::default() }
}

impl Rig {
    fn set(&self, name: &str, key: &str, value: &str) -> u64 {
        self.done(self.bus.publish(name, value).key(key).send()).expect("publishes").seq
    }

    fn unset(&self, name: &str, key: &str) -> u64 {
        self.done(self.bus.publish_json(name, "null").key(key).send()).expect("publishes").seq
    }

    fn run_maintenance(&self) {
        crate::rig::run_maintenance(&self.backend);
        self.commit();
    }

    fn state(&self, name: &str) -> BTreeMap<String, String> {
        let state = self.done(Box::pin(self.bus.load_state(name))).expect("loads");
        state.iter().map(|(key, event)| (key.to_owned(), event.json().expect("a string"))).collect()
    }

    fn kept_events(&self, name: &str) -> u64 {
        let topics = self.store.log().usage().expect("reads");
        let id = self.store.topics().into_iter().find(|it| it.name.as_str() == name).expect("is there").id;
        topics.iter().find(|it| it.topic == id).map_or(0, |it| it.events)
    }
}

#[test]
fn expired_events_are_not_served_and_their_space_is_freed() {
    let rig = Rig::new(1);
    rig.backend.set_topic_rules(vec![rule("beats", kept_for(10_000))]);
    rig.publish_numbers("beats", 300);
    rig.publish_numbers("orders", 300);
    rig.pass(9_000);
    rig.publish("beats", "301");
    rig.run_maintenance();
    assert_eq!(rig.payloads("beats").len(), 301);
    let bytes = rig.store.stats().bytes;
    rig.pass(1_000);
    rig.run_maintenance();
    assert_eq!(rig.payloads("beats"), ["301"]);
    assert_eq!(rig.payloads("orders").len(), 300);
    // Events in the active segment cannot be cleaned yet; fill it.
    rig.publish_numbers("orders", 300);
    rig.pass(10_000);
    rig.run_maintenance();
    assert!(rig.payloads("beats").is_empty());
    assert!(rig.store.stats().bytes < bytes * 3 / 2 + 40_000, "{} after {bytes}", rig.store.stats().bytes);
    assert!(rig.kept_events("beats") < 100, "{} are still there", rig.kept_events("beats"));
    // Seqs continue after the removed events.
    assert_eq!(rig.publish("beats", "next").seq, 302);
    for rig in rig.after_power_cuts() {
        assert_eq!(rig.payloads("beats"), ["next"]);
        assert_eq!(rig.payloads("orders").len(), 600);
    }
}

#[test]
fn events_removed_by_retention_stay_removed_when_the_setting_changes() {
    let rig = Rig::new(2);
    rig.backend.set_topic_rules(vec![rule("beats", kept_for(10_000))]);
    rig.publish_numbers("beats", 5);
    rig.pass(10_000);
    rig.run_maintenance();
    assert!(rig.payloads("beats").is_empty());
    // All events are still on the disk, in the active segment.
    assert_eq!(rig.kept_events("beats"), 5);
    let rig = rig.restart();
    assert!(rig.payloads("beats").is_empty());
    let mut all = rig.subscribe("beats", "all");
    assert_eq!(rig.publish("beats", "six").seq, 6);
    assert_eq!(seqs(&rig.all(&mut all)), [6]);
}

#[test]
fn a_group_below_the_oldest_kept_event_continues_there_and_missed_events_are_counted() {
    let rig = Rig::new(3);
    rig.backend.set_topic_rules(vec![rule("beats", kept_for(10_000))]);
    rig.publish_numbers("beats", 50);
    let mut slow = rig.subscribe("beats", "slow");
    let held = rig.next(&mut slow).expect("the first");
    let nacked = rig.next(&mut slow).expect("the second");
    rig.done(nacked.nack("later")).expect("nacks");
    rig.pass(5_000);
    rig.publish_numbers("beats", 3);
    rig.pass(5_000);
    rig.run_maintenance();
    // A member may still settle a delivery that it holds; events that wait for redelivery are gone.
    rig.ack(&held);
    rig.pass(60_000);
    let rest = rig.all_redelivered(&mut slow);
    assert_eq!(seqs(&rest), [51, 52, 53]);
    let info = rig.info("beats", "slow");
    // All but the one that was held, and perhaps one that was pulled ahead.
    assert!((48..=49).contains(&info.counters.missed), "{:?}", info.counters);
    rest.iter().for_each(|delivery| rig.ack(delivery));
    // A delivery that was pulled ahead is settled when its lease has expired.
    rig.pass(60_000);
    rig.commit();
    assert!(rig.all(&mut slow).is_empty());
    assert_eq!(rig.floor("beats", "slow"), 53);
    drop((slow, rest, held, nacked));
    let rig = rig.restart();
    assert_eq!(rig.floor("beats", "slow"), 53);
}

#[test]
fn the_newest_events_within_retention_bytes_are_kept() {
    let rig = Rig::new(4);
    let options = TopicOptions { retention_bytes: Some(20_000), ..TopicOptions::default() };
    rig.backend.set_topic_rules(vec![rule("big", options)]);
    let filler = "f".repeat(400);
    for _ in 0..200 {
        rig.publish("big", &filler);
    }
    rig.run_maintenance();
    let kept = rig.payloads("big").len();
    assert!((10..=50).contains(&kept), "{kept} of about 500 bytes are kept in 20,000");
    assert!(rig.kept_events("big") < 120, "{}", rig.kept_events("big"));
    assert_eq!(rig.read("big").events.last().map(prombus::Event::seq), Some(200));
}

#[test]
fn compaction_keeps_the_newest_event_of_each_key_and_events_without_a_key() {
    let rig = Rig::new(5);
    rig.backend.set_topic_rules(vec![rule("kv", compacted())]);
    for round in 0..100 {
        for key in 0..10 {
            rig.set("kv", &format!("k{key}"), &format!("{round}"));
        }
    }
    rig.publish("kv", "no key");
    let before = rig.state("kv");
    rig.pass(60_000);
    rig.run_maintenance();
    assert_eq!(rig.state("kv"), before);
    let kept = rig.kept_events("kv");
    assert!(kept < 300, "{kept} of 1,001 events are kept");
    // A new reader gets less, but ends with the same state.
    let mut group = rig.subscribe("kv", "late");
    let mut state = BTreeMap::new();
    let mut read = 0;
    // A pull that finds only gaps yields before it continues.
    for delivery in (0..50).flat_map(|_| rig.all(&mut group)) {
        read += 1;
        state
            .extend(delivery.key().map(|key| (key.to_owned(), delivery.json::<String>().expect("a string"))));
        rig.ack(&delivery);
    }
    assert_eq!((read, state), (kept, before.clone()));
    assert_eq!(rig.info("kv", "late").counters.missed, 0, "nothing was missed: newer events superseded them");
    drop(group);
    for rig in rig.after_power_cuts() {
        assert_eq!(rig.state("kv"), before);
        assert_eq!(rig.payloads("kv").last().map(String::as_str), Some("no key"));
    }
}

#[test]
fn a_deleted_key_stays_deleted_when_its_tombstone_is_removed() {
    let rig = Rig::new(6);
    let open = |rig: &Rig| rig.backend.set_topic_rules(vec![rule("kv", compacted())]);
    open(&rig);
    for key in 0..40 {
        rig.set("kv", &format!("k{key}"), &"v".repeat(200));
    }
    for key in 0..40 {
        if key % 4 != 0 {
            rig.unset("kv", &format!("k{key}"));
        }
    }
    let alive: Vec<String> = (0..40).filter(|key| key % 4 == 0).map(|key| format!("k{key}")).collect();
    let sorted = |rig: &Rig| {
        let mut keys: Vec<String> = rig.state("kv").into_keys().collect();
        keys.sort_by_key(|key| key[1..].parse::<u32>().expect("a number"));
        keys
    };
    let mut rig = rig;
    let mut fewest = u64::MAX;
    for _ in 0..12 {
        assert_eq!(sorted(&rig), alive);
        rig.pass(60_000);
        rig.run_maintenance();
        // Fill segments with other events, so that the topic's segments are not active.
        rig.publish_numbers("filler", 60);
        fewest = fewest.min(rig.kept_events("kv"));
        // Each start rebuilds the map from the disk.
        rig = rig.restart();
        open(&rig);
    }
    assert_eq!(sorted(&rig), alive);
    assert!(fewest < 30, "{fewest} events are kept for 10 keys: the tombstones were not removed");
}

/// A segment that is full of live events is not rewritten, so an old event of a deleted key stays in it. As long as it does,
/// the tombstone must stay too.
#[test]
fn a_tombstone_stays_while_an_older_event_of_its_key_is_in_a_segment_that_is_not_rewritten() {
    let rig = Rig::new(12);
    let open = |rig: &Rig| rig.backend.set_topic_rules(vec![rule("kv", compacted())]);
    open(&rig);
    let value = "v".repeat(400);
    rig.set("kv", "gone", &value);
    for key in 0..60 {
        rig.set("kv", &format!("k{key}"), &value);
    }
    // The segment of the tombstone contains few other live events.
    for _ in 0..30 {
        rig.set("kv", "often", &value);
    }
    rig.unset("kv", "gone");
    for _ in 0..90 {
        rig.set("kv", "often", &value);
    }
    let mut rig = rig;
    for round in 0..6 {
        rig.pass(60_000);
        let before = rig.kept_events("kv");
        rig.run_maintenance();
        if round == 0 {
            assert!(rig.kept_events("kv") < before, "nothing was cleaned");
        }
        let gone = rig.read("kv").events.iter().filter(|event| event.key() == Some("gone")).count();
        assert_eq!(gone, 2, "round {round}: both the old event and its tombstone are there");
        // Each start rebuilds the map from the disk.
        rig = rig.restart();
        open(&rig);
        let state = rig.state("kv");
        assert!(!state.contains_key("gone"), "round {round}: a deleted key is back");
        assert_eq!(state.len(), 61, "round {round}");
    }
}

#[test]
fn a_deleted_topic_does_not_come_back() {
    let rig = Rig::new(7);
    rig.publish_numbers("gone", 200);
    rig.publish_numbers("kept", 200);
    let used = rig.store.stats().bytes;
    let gone = topic("gone");
    rig.done(Box::pin(rig.bus.delete_topic(&gone))).expect("deletes");
    for rig in rig.after_power_cuts() {
        assert!(rig.payloads("gone").is_empty());
        assert_eq!(rig.payloads("kept").len(), 200);
    }
    rig.run_maintenance();
    assert!(rig.store.stats().bytes < used, "its space is freed");
    assert_eq!(rig.publish("gone", "new").seq, 1);
    let rig = rig.power_cut();
    assert_eq!(rig.payloads("gone"), ["new"]);
    assert_eq!(rig.payloads("kept").len(), 200);
}

#[test]
fn options_of_a_topic_survive_a_power_cut() {
    let rig = Rig::new(8);
    rig.publish("orders", "one");
    let options =
        TopicOptions { retention_ms: Some(123_000), max_attempts: Some(3), ..TopicOptions::default() };
    let orders = topic("orders");
    rig.done(Box::pin(rig.bus.set_topic(&orders, options))).expect("sets");
    for rig in rig.after_power_cuts() {
        let settings = rig.bus.topic_settings("orders");
        assert_eq!((settings.retention_ms, settings.max_attempts), (Some(123_000), Some(3)));
    }
    rig.done(Box::pin(rig.bus.delete_topic(&orders))).expect("deletes");
    rig.publish("orders", "again");
    for rig in rig.after_power_cuts() {
        assert_eq!(rig.bus.topic_settings("orders").retention_ms, None);
    }
}

/// A consumer that has loaded a state can subscribe after its position even if the event at that position has been removed.
#[test]
fn a_group_can_start_after_a_position_whose_event_was_removed() {
    let rig = Rig::new(9);
    rig.backend.set_topic_rules(vec![rule("kv", compacted()), rule("beats", kept_for(10_000))]);
    let other = rig.publish("beats", "other");
    for round in 0..60 {
        rig.set("kv", "a", &round.to_string());
    }
    let state = rig.done(Box::pin(rig.bus.load_state("kv"))).expect("loads");
    let position = state.position().expect("has events");
    for round in 60..200 {
        rig.set("kv", "a", &round.to_string());
    }
    rig.pass(60_000);
    rig.run_maintenance();
    assert!(rig.read("kv").events.first().is_some_and(|event| event.seq() > position.seq), "it is gone");
    let mut group = rig.join(rig.bus.subscribe("kv", "g").from(state.start()));
    let all = rig.all(&mut group);
    assert_eq!(all.last().map(|it| it.seq()), Some(200));
    assert!(all.iter().all(|it| it.seq() > position.seq));
    // The id of another topic's event is refused, even if both topics have gaps.
    let kept = rig.read("kv").events[0].id();
    let wrong = rig.done(Box::pin(rig.bus.seek("beats", "g", Start::AfterId(kept))));
    assert!(wrong.is_err());
    let mut beats = rig.join(rig.bus.subscribe("beats", "g").from(Start::AfterId(other.id)));
    rig.publish("beats", "next");
    assert_eq!(seqs(&rig.all(&mut beats)), [2]);
}

/// If one topic of a group has a gap and another has the event, the event is used.
#[test]
fn the_event_of_after_id_is_searched_in_all_topics_before_gaps_are_considered() {
    let rig = Rig::new(10);
    rig.backend.set_topic_rules(vec![rule("a", kept_for(10_000))]);
    rig.publish_numbers("a", 3);
    rig.publish_numbers("b", 3);
    rig.pass(10_000);
    rig.run_maintenance();
    rig.publish("a", "4");
    let second = rig.read("b").events[1].id();
    let mut group = rig.join(rig.bus.subscribe("a", "g").topics(["b"]).from(Start::AfterId(second)));
    let mut got: Vec<_> = rig.all(&mut group).iter().map(|it| (it.topic().to_string(), it.seq())).collect();
    got.sort();
    assert_eq!(got, [("a".to_owned(), 4), ("b".to_owned(), 3)]);
}

/// Commit times never fall. After the wall clock jumped forward and back, they stay at the later time until the clock has
/// caught up.
#[test]
fn events_expire_in_time_after_the_clock_jumped_forward_and_back() {
    let rig = Rig::new(13);
    rig.backend.set_topic_rules(vec![rule("beats", kept_for(60_000)), rule("kv", compacted())]);
    const START_MS: i64 = 1_700_000_000_000;
    rig.clock.set_wall_ms(START_MS + 86_400_000);
    rig.publish_numbers("beats", 5);
    rig.set("kv", "a", "in the future");
    rig.clock.set_wall_ms(START_MS);
    rig.publish_numbers("beats", 5);
    rig.unset("kv", "a");
    rig.run_maintenance();
    for _ in 0..11 {
        rig.pass(5_000);
        rig.publish("beats", "later");
        rig.publish_numbers("filler", 40);
        rig.run_maintenance();
    }
    assert_eq!(rig.payloads("beats").len(), 21, "none is a minute old");
    // The events of the first minute expire one after another, and not too early.
    for left in (1..=11).rev() {
        rig.pass(5_000);
        rig.publish_numbers("filler", 40);
        rig.run_maintenance();
        let kept = rig.payloads("beats").len();
        assert!(
            (left..=left + 1).contains(&kept),
            "{kept} events are kept, {left} are younger than a minute"
        );
    }
    rig.pass(60_000);
    rig.run_maintenance();
    assert!(rig.payloads("beats").is_empty());
    // Tombstones expire in time as well.
    for _ in 0..3 {
        rig.pass(60_000);
        rig.publish_numbers("filler", 60);
        rig.run_maintenance();
    }
    assert_eq!(rig.kept_events("kv"), 0);
}

#[test]
fn the_memory_of_keys_is_freed_when_their_tombstones_are_removed() {
    let rig = Rig::new(14);
    rig.backend.set_topic_rules(vec![rule("kv", compacted())]);
    let bytes = || rig.backend.figures().state_memory_bytes;
    for key in 0..200 {
        rig.set("kv", &format!("key-{key}"), "value");
    }
    rig.run_maintenance();
    let before = bytes();
    for key in 0..200 {
        rig.unset("kv", &format!("key-{key}"));
    }
    for _ in 0..6 {
        rig.pass(60_000);
        rig.publish_numbers("filler", 60);
        rig.run_maintenance();
    }
    assert_eq!(rig.kept_events("kv"), 0, "the tombstones are gone");
    assert!(bytes() < before / 20, "{} of {before} bytes are still counted without any key", bytes());
    // The same with keys that retention removes.
    rig.backend.set_topic_rules(vec![rule("beats", kept_for(10_000))]);
    for key in 0..200 {
        rig.set("beats", &format!("key-{key}"), "value");
    }
    rig.state("beats");
    assert!(bytes() > before / 2);
    rig.pass(10_000);
    rig.run_maintenance();
    assert!(bytes() < before / 20, "{} of {before} bytes are still counted for removed events", bytes());
}

/// Cleaning that was not done before a restart is done after it, even if nothing else is deleted.
#[test]
fn a_topic_deleted_before_a_restart_is_cleaned_after_it() {
    let rig = Rig::new(11);
    rig.publish_numbers("gone", 400);
    rig.publish_numbers("kept", 100);
    rig.done(Box::pin(rig.bus.delete_topic(&topic("gone")))).expect("deletes");
    let rig = rig.restart();
    let used = rig.store.stats().bytes;
    rig.run_maintenance();
    assert!(rig.store.stats().bytes < used, "{} of {used} are left", rig.store.stats().bytes);
    assert_eq!(rig.payloads("kept").len(), 100);
}

/// A topic is deleted while the disk is slow and the queue is full: the caller waits without blocking its thread.
#[test]
fn deleting_a_topic_does_not_block_the_thread_that_asks_for_it() {
    let disk = prombus_log::storage::simulated::Disk::new(9);
    let mut options = crate::rig::small_options();
    options.threads = true;
    let clock: std::sync::Arc<dyn prombus::Clock> =
        std::sync::Arc::new(prombus::ManualClock::new(1_700_000_000_000));
    let options = prombus::engine::LogEngineOptions { log: options };
    let store =
        prombus::engine::LogEngine::open_storage(std::sync::Arc::new(disk.clone()), options, clock.clone());
    let store = std::sync::Arc::new(store.expect("opens"));
    let backend = prombus::LocalBackend::open_without_timer(store, clock, prombus::Limits::default());
    let bus = prombus::Bus::with_backend(std::sync::Arc::new(backend.expect("opens")));
    let mut made = bus.publish("orders", "first").send();
    while crate::rig::poll(&mut made).is_pending() {
        std::thread::yield_now();
    }
    disk.hold_syncs(true);
    // One batch is being written, the next one is full.
    for _ in 0..200 {
        let mut publishing = bus.publish_json("orders", "1").send();
        assert!(crate::rig::poll(&mut publishing).is_pending(), "nothing is durable");
    }
    let deleting_bus = bus.clone();
    let deleting = std::thread::spawn(move || {
        let orders = topic("orders");
        let mut deleting = Box::pin(deleting_bus.delete_topic(&orders));
        assert!(crate::rig::poll(&mut deleting).is_pending(), "nothing is durable");
        disk.hold_syncs(false);
        loop {
            if let std::task::Poll::Ready(deleted) = crate::rig::poll(&mut deleting) {
                return deleted;
            }
            std::thread::yield_now();
        }
    });
    let started = std::time::Instant::now();
    while !deleting.is_finished() {
        assert!(started.elapsed().as_secs() < 20, "the thread is blocked");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    deleting.join().expect("does not panic").expect("deletes");
    let topics = crate::rig::poll(&mut Box::pin(bus.topics()));
    assert!(matches!(topics, std::task::Poll::Ready(Ok(topics)) if topics.is_empty()));
}
