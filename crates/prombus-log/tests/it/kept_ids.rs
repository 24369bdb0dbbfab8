//! Publishers' ids of cleaned events are duplicates for a while more.

use crate::support::{Cut, HandClock, Lives, Rig, clean, event, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{EventId, Liveness, NewEvent, Options, Outcome, TopicId, verify_storage};
use std::sync::Arc;

const DEDUPE_MS: i64 = 60_000;

fn options(clock: &Arc<HandClock>) -> Options {
    Options { dedupe_ms: DEDUPE_MS, clock: Arc::<HandClock>::clone(clock), ..small_options() }
}

fn open(disk: &Disk, clock: &Arc<HandClock>) -> Rig {
    Rig::open(disk, options(clock)).unwrap()
}

/// Half of the ids are time-ordered.
fn id(number: u64) -> EventId {
    let version = if number % 2 == 0 { 7 << 76 } else { 4 << 76 };
    EventId::from_u128(u128::from(number) << 80 | version | 2 << 62)
}

fn publish(rig: &Rig, topic: TopicId, number: u64) -> Outcome {
    rig.put_events(&[NewEvent { id: Some(id(number)), ..event(topic, &[b'x'; 150]) }])[0]
}

/// A log with 300 events with ids, and then 300 without, so that the first ones are in sealed segments.
fn filled(disk: &Disk, clock: &Arc<HandClock>) -> (Rig, TopicId) {
    let rig = open(disk, clock);
    let topic = rig.topic("t");
    for number in 1..=300 {
        assert!(!publish(&rig, topic, number).duplicate);
    }
    rig.fill("rest", 150);
    (rig, topic)
}

fn check(rig: &Rig, topic: TopicId, what: &str) {
    for number in 1..=300 {
        let outcome = publish(rig, topic, number);
        assert_eq!((outcome.duplicate, outcome.seq), (true, number), "{what}");
        assert_eq!(rig.log.find_id(topic, id(number)).unwrap(), Some(number), "{what}");
    }
}

fn kept_files(rig: &Rig) -> usize {
    let names = rig.disk.names();
    let has_segment = |name: &String| names.contains(&name.replace(".idx", ".seg"));
    names.iter().filter(|name| name.ends_with(".idx") && !has_segment(name)).count()
}

fn ids_outlive_cleaning(seed: u64, liveness: &dyn Liveness) {
    let disk = Disk::new(seed);
    let clock = HandClock::at(1_700_000_000_000);
    let (rig, topic) = filled(&disk, &clock);
    let report = clean(&rig.log, liveness).unwrap();
    assert!(report.events_removed > 200, "{report:?}");
    check(&rig, topic, "after cleaning");
    rig.settle();
    let memory = rig.log.stats().index_memory_bytes;
    assert!(memory > 300 * 10 / 8, "the memory includes the filters: {memory}");

    // The files of the events are recycled, and the power is cut.
    rig.fill("rest", 300);
    check(&rig, topic, "after recycling");
    disk.cut_after(0);
    drop(rig);
    disk.power_cut();
    let rig = open(&disk, &clock);
    check(&rig, topic, "after a crash");
    assert!(rig.listener.faults().is_empty());
    rig.log.close().unwrap();
    assert_eq!(verify_storage(Arc::new(disk.clone()), |_| {}).unwrap().faults, []);
    let rig = open(&disk, &clock);
    check(&rig, topic, "after a restart");

    clock.move_by(DEDUPE_MS - 1);
    rig.settle();
    check(&rig, topic, "before their time is over");
    clock.move_by(1);
    rig.settle();
    assert_eq!(kept_files(&rig), 0, "{:?}", rig.disk.names());
    let outcome = publish(&rig, topic, 1);
    assert_eq!((outcome.duplicate, outcome.seq), (false, 301), "after their time");
    assert_eq!(rig.log.find_id(topic, id(2)).unwrap(), None);
    rig.log.close().unwrap();
    let rig = open(&disk, &clock);
    assert!(publish(&rig, topic, 1).duplicate);
    assert!(!publish(&rig, topic, 3).duplicate);
}

#[test]
fn ids_of_retired_segments_stay_duplicates_until_their_time_is_over() {
    ids_outlive_cleaning(1, &Cut(|topic: TopicId| if topic.number() == 1 { 301 } else { 1 }));
}

#[test]
fn ids_of_rewritten_segments_stay_duplicates_until_their_time_is_over() {
    // The first segments keep one event in a hundred.
    ids_outlive_cleaning(2, &Lives(|topic: TopicId, seq| topic.number() != 1 || seq % 100 == 7));
}

#[test]
fn the_oldest_kept_ids_are_forgotten_when_their_files_are_over_the_limit() {
    const LIMIT_BYTES: u64 = 6_000;
    let disk = Disk::new(8);
    let clock = HandClock::at(1_700_000_000_000);
    let options = Options { kept_ids_bytes: LIMIT_BYTES, ..options(&clock) };
    let rig = Rig::open(&disk, options).unwrap();
    let topic = rig.topic("t");
    for number in 1..=300 {
        publish(&rig, topic, number);
        clock.move_by(1);
    }
    rig.fill("rest", 150);
    let liveness = Cut(|topic: TopicId| if topic.number() == 1 { 301 } else { 1 });
    clean(&rig.log, &liveness).unwrap();
    rig.settle();
    let known = |number| rig.log.find_id(topic, id(number)).unwrap().is_some();
    assert!(!known(1), "the oldest");
    assert!(known(300), "the newest");
    assert!(kept_files(&rig) > 0);
    assert!((1..300).all(|number| !known(number) || known(number + 1)), "the oldest go first");
}

#[test]
fn ids_of_old_events_are_kept_from_the_time_of_cleaning() {
    let disk = Disk::new(3);
    let clock = HandClock::at(1_700_000_000_000);
    let (rig, topic) = filled(&disk, &clock);
    clock.move_by(10 * DEDUPE_MS);
    // The first segments keep one event in a hundred; the first of them have none and are retired.
    let liveness = Lives(|id, seq| id != topic || seq > 100 && seq % 100 == 7);
    let report = clean(&rig.log, &liveness).unwrap();
    assert!(report.events_removed > 200, "{report:?}");
    rig.settle();
    clock.move_by(DEDUPE_MS - 1);
    rig.settle();
    check(&rig, topic, "before dedupe_ms after cleaning");
    clock.move_by(1);
    rig.settle();
    assert_eq!(kept_files(&rig), 0, "{:?}", rig.disk.names());
    assert!(!publish(&rig, topic, 1).duplicate);
    assert!(publish(&rig, topic, 107).duplicate, "the event still exists");
}

#[test]
fn without_a_dedupe_time_no_id_of_a_cleaned_event_is_kept() {
    let disk = Disk::new(9);
    let clock = HandClock::at(1_700_000_000_000);
    let rig = Rig::open(&disk, Options { dedupe_ms: 0, ..options(&clock) }).unwrap();
    let topic = rig.topic("t");
    for number in 1..=300 {
        publish(&rig, topic, number);
    }
    rig.fill("rest", 150);
    clean(&rig.log, &Lives(|id, seq| id != topic || seq % 100 == 7)).unwrap();
    rig.settle();
    assert_eq!(kept_files(&rig), 0);
    assert!(!publish(&rig, topic, 1).duplicate);
    assert!(publish(&rig, topic, 107).duplicate, "the event still exists");
}

#[test]
fn the_ids_of_a_deleted_topic_are_forgotten() {
    let disk = Disk::new(4);
    let clock = HandClock::at(1_700_000_000_000);
    let (rig, topic) = filled(&disk, &clock);
    rig.log.delete_topic(topic).unwrap();
    rig.settle();
    let report = clean(&rig.log, &Cut(|_| 1)).unwrap();
    assert!(report.events_removed > 200, "{report:?}");
    rig.settle();
    assert_eq!(kept_files(&rig), 0, "{:?}", rig.disk.names());
    let topic = rig.topic("t");
    assert!(!publish(&rig, topic, 1).duplicate, "another topic of the same name");
}

#[test]
fn small_files_of_kept_ids_are_merged() {
    let disk = Disk::new(5);
    let clock = HandClock::at(1_700_000_000_000);
    let rig = open(&disk, &clock);
    let topic = rig.topic("t");
    let mut number = 0;
    for _ in 0..60 {
        for _ in 0..60 {
            number += 1;
            publish(&rig, topic, number);
        }
        let first = rig.log.last_seq(topic) + 1;
        clean(&rig.log, &Cut(|_| first)).unwrap();
        clock.move_by(100);
        rig.settle();
        for _ in 0..10 {
            clock.move_by(1);
            rig.settle();
        }
    }
    assert!(kept_files(&rig) < 20, "{} files are kept", kept_files(&rig));
    for number in (1..=number).step_by(17) {
        let outcome = publish(&rig, topic, number);
        assert_eq!((outcome.duplicate, outcome.seq), (true, number));
    }
    rig.log.close().unwrap();
    assert_eq!(verify_storage(Arc::new(disk.clone()), |_| {}).unwrap().faults, []);
    let rig = open(&disk, &clock);
    for number in (1..=number).step_by(17) {
        assert!(publish(&rig, topic, number).duplicate);
    }
    clock.move_by(DEDUPE_MS);
    rig.settle();
    assert_eq!(kept_files(&rig), 0);
}

#[test]
fn damage_to_kept_ids_is_named_and_the_log_opens() {
    let disk = Disk::new(6);
    let clock = HandClock::at(1_700_000_000_000);
    let (rig, topic) = filled(&disk, &clock);
    clean(&rig.log, &Cut(|id| if id == topic { 301 } else { 1 })).unwrap();
    rig.settle();
    let names = rig.disk.names();
    let kept =
        names.iter().find(|name| name.ends_with(".idx") && !names.contains(&name.replace(".idx", ".seg")));
    let kept = kept.unwrap().clone();
    rig.log.close().unwrap();
    disk.flip_bit(&kept, 30, 1);
    let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    assert!(report.faults.iter().any(|fault| fault.file == kept), "{:?}", report.faults);
    let rig = open(&disk, &clock);
    let faults = rig.listener.faults();
    assert!(faults.iter().any(|fault| fault.file == kept), "{faults:?}");
    rig.fill("t", 5);
    assert_eq!(rig.log.last_seq(topic), 305);
}
