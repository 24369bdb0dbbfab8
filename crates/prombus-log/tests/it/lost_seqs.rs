//! Damage that destroys COMMITs together with their events: readers find every lost seq as damaged, and each is reported
//! and counted.

use crate::support::{Cut, Random, Rig, clean, event, setting, small_options};
use prombus_log::storage::Storage;
use prombus_log::storage::simulated::Disk;
use prombus_log::{Chunk, Fault, MissingReason, Options, ReadLimit, TopicId, verify_storage};
use std::collections::BTreeSet;
use std::sync::Arc;

const TOPICS: [&str; 3] = ["a", "b", "c"];

/// The growing segment, and where its last frame ends.
fn growing_segment(disk: &Disk, rig: &Rig) -> (String, u64) {
    let topic = rig.topic("end");
    rig.put_events(&[event(topic, b"the very last event")]);
    let has_it = |name: &String| {
        let bytes = disk.contents(name).unwrap();
        name.ends_with(".seg") && bytes.windows(19).any(|window| window == b"the very last event")
    };
    let name = disk.names().into_iter().find(has_it).unwrap();
    let bytes = disk.contents(&name).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() as u64 + 1;
    (name, end)
}

/// Publishes to three topics in turn, one event per batch.
fn publish(rig: &Rig, count: u64) {
    for number in 0..count {
        rig.fill(TOPICS[(number % 3) as usize], 1);
    }
}

/// Publishes until a new segment is begun, and then `count` more events.
fn publish_to_new_segment(rig: &Rig, count: u64) {
    let before = rig.log.stats().segments;
    while rig.log.stats().segments == before {
        publish(rig, 1);
    }
    publish(rig, count);
}

/// The seqs of a topic that are served, and those that are damaged.
fn served_and_damaged(rig: &Rig, topic: TopicId, place: &str) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut served, mut damaged) = (BTreeSet::new(), BTreeSet::new());
    let mut chunk = Chunk::default();
    let mut seq = 1;
    while seq <= rig.log.last_seq(topic) {
        rig.log.read(topic, seq, ReadLimit { events: 5, bytes: 2_000 }, &mut chunk).unwrap();
        served.extend(chunk.events().map(|event| event.seq));
        for missing in chunk.missing() {
            assert_eq!(missing.reason, MissingReason::Corrupt, "{place}: {missing:?}");
            damaged.extend(missing.first_seq..=missing.last_seq);
        }
        assert!(chunk.next_seq() > seq, "{place}: stuck at {seq}");
        seq = chunk.next_seq();
    }
    (served, damaged)
}

fn named(faults: &[Fault], topic: &str) -> BTreeSet<u64> {
    let of_topic = faults.iter().filter(|fault| fault.topic.as_deref() == Some(topic));
    of_topic.filter_map(|fault| fault.seq.map(|seq| seq..=fault.last_seq.unwrap_or(seq))).flatten().collect()
}

/// Overwrites a part of a file, or cuts it off.
fn destroy(disk: &Disk, name: &str, part: std::ops::Range<u64>, is_cut: bool, random: &mut Random) {
    let mut bytes = disk.contents(name).unwrap();
    if is_cut {
        bytes.truncate(part.start as usize);
    } else {
        let fill = random.next() as u8;
        bytes[part.start as usize..part.end as usize].fill(fill);
    }
    disk.replace(name, bytes);
}

/// Checks a damaged log against the published events. Returns how many events are lost.
fn check(disk: &Disk, last_seqs: &[(&str, u64)], place: &str) -> u64 {
    let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    let options = Options { tail_bytes: 0, checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(disk, options).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut lost = 0;
    for &(name, last_seq) in last_seqs {
        let topic = rig.topic(name);
        assert_eq!(rig.log.last_seq(topic), last_seq, "{place}: {name}");
        let (served, damaged) = served_and_damaged(&rig, topic, place);
        assert!(served.is_disjoint(&damaged), "{place}: {name}");
        assert_eq!((served.len() + damaged.len()) as u64, last_seq, "{place}: {name}");
        assert_eq!(named(&rig.listener.faults(), name), damaged, "{place}: {name} reported by the log");
        assert_eq!(named(&report.faults, name), damaged, "{place}: {name} reported by verify");
        lost += damaged.len() as u64;
    }
    assert_eq!(rig.log.stats().corrupt_events, lost, "{place}: {:?}", rig.listener.faults());
    lost
}

fn last_seqs(rig: &Rig) -> Vec<(&'static str, u64)> {
    let names = TOPICS.into_iter().chain(["end"]);
    names.map(|name| (name, rig.log.last_seq(rig.topic(name)))).collect()
}

#[test]
fn every_event_in_a_damaged_end_of_a_closed_log_is_reported_and_counted() {
    for is_cut in [false, true] {
        let rig = Rig::new(1);
        publish(&rig, 100);
        publish_to_new_segment(&rig, 30);
        let disk = rig.disk.clone();
        let (segment, end) = growing_segment(&disk, &rig);
        let last_seqs = last_seqs(&rig);
        rig.log.close().unwrap();
        destroy(&disk, &segment, end - 4_000..end, is_cut, &mut Random::new(2));
        let lost = check(&disk, &last_seqs, if is_cut { "cut" } else { "overwritten" });
        assert!((10..30).contains(&lost), "{lost}");
        // The events are damaged in a backup too.
        let rig = Rig::open(&disk.fork(), small_options()).unwrap();
        let copy = Disk::new(3);
        rig.log.backup_storage(Arc::new(copy.clone()), &mut |_| {}).unwrap();
        let restored = Rig::open(&copy, Options { tail_bytes: 0, ..small_options() }).unwrap();
        let damaged = |&(name, _): &(&str, u64)| {
            served_and_damaged(&restored, restored.topic(name), "backup").1.len() as u64
        };
        assert_eq!(last_seqs.iter().map(damaged).sum::<u64>(), lost);
        // The damage is still found after more appends and another open.
        let rig = Rig::open(&disk, small_options()).unwrap();
        publish(&rig, 3);
        let more: Vec<_> =
            last_seqs.iter().map(|&(name, seq)| (name, seq + u64::from(name != "end"))).collect();
        rig.log.close().unwrap();
        assert_eq!(check(&disk, &more, "after more events"), lost);
    }
}

#[test]
fn a_cleaned_topic_is_not_taken_for_a_damaged_one() {
    let rig = Rig::new(3);
    let gone = rig.fill("gone", 300);
    publish(&rig, 300);
    clean(&rig.log, &Cut(move |topic| if topic == gone { u64::MAX } else { 1 })).unwrap();
    let rig = rig.reopen();
    publish_to_new_segment(&rig, 30);
    let disk = rig.disk.clone();
    let (segment, end) = growing_segment(&disk, &rig);
    let last_seqs = last_seqs(&rig);
    rig.log.close().unwrap();
    destroy(&disk, &segment, end - 2_000..end, false, &mut Random::new(2));
    assert!(check(&disk, &last_seqs, "cleaned") > 5);
}

#[test]
fn no_damage_in_a_closed_log_makes_an_event_seem_cleaned() {
    let seed = setting("PROMBUS_SEED", 5);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    let rig = Rig::new(seed);
    publish(&rig, 400);
    publish_to_new_segment(&rig, 36);
    let disk = rig.disk.clone();
    let (growing, end) = growing_segment(&disk, &rig);
    let last_seqs = last_seqs(&rig);
    rig.log.close().unwrap();
    let used_bytes = |name: &str| {
        disk.contents(name).unwrap().iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1)
    };
    let is_full = |name: &String| name.ends_with(".seg") && used_bytes(name) > 15_000;
    let segments: Vec<String> = disk.names().into_iter().filter(is_full).collect();
    assert!(segments.len() > 4);
    let mut most = 0;
    for round in 0..setting("PROMBUS_ROUNDS", 400) {
        let name =
            if random.one_in(2) { &growing } else { &segments[random.below(segments.len() as u64) as usize] };
        let used = if *name == growing { end } else { used_bytes(name) };
        let start = random.between(4096, used - 1);
        let part = start..random.between(start + 1, used);
        let place = format!("round {round}: {name} {part:?}");
        let damaged = disk.fork();
        destroy(&damaged, name, part, random.one_in(4), &mut random);
        if random.one_in(4) {
            // The open rebuilds all indexes, so no segment has one while its neighbours' indexes are rebuilt.
            for name in damaged.names().into_iter().filter(|name| name.ends_with(".idx")) {
                Storage::remove(&damaged, &name).unwrap();
            }
        }
        most = most.max(check(&damaged, &last_seqs, &place));
    }
    assert!(most > 40, "{most}");
}

#[test]
fn no_damage_in_batches_that_are_replayed_after_a_crash_makes_an_event_seem_cleaned() {
    let seed = setting("PROMBUS_SEED", 6);
    println!("PROMBUS_SEED={seed}");
    let mut random = Random::new(seed);
    // Without checkpoints all segments are replayed.
    let options = Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(seed), options).unwrap();
    for name in TOPICS.into_iter().chain(["end"]) {
        rig.topic(name);
    }
    publish(&rig, 300);
    publish_to_new_segment(&rig, 20);
    let (growing, _) = growing_segment(&rig.disk, &rig);
    let last_seqs = last_seqs(&rig);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    let used_bytes = |name: &str| {
        disk.contents(name).unwrap().iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1)
    };
    // The last segment is not damaged, so that nothing is taken for a torn tail.
    let is_replayed = |name: &String| name.ends_with(".seg") && *name != growing && used_bytes(name) > 8_000;
    let segments: Vec<String> = disk.names().into_iter().filter(is_replayed).collect();
    let mut most = 0;
    for round in 0..setting("PROMBUS_ROUNDS", 400) {
        let name = &segments[random.below(segments.len() as u64) as usize];
        // A topic whose record is lost has another name.
        let first = if *name == segments[0] { 5_000 } else { 4_096 };
        let start = random.between(first, used_bytes(name) - 1);
        let part = start..random.between(start + 1, used_bytes(name));
        let place = format!("round {round}: {name} {part:?}");
        let damaged = disk.fork();
        destroy(&damaged, name, part, random.one_in(4), &mut random);
        if random.one_in(2) {
            // The crash happened before the index was written.
            let _ = Storage::remove(&damaged, &name.replace(".seg", ".idx"));
        }
        most = most.max(check(&damaged, &last_seqs, &place));
    }
    assert!(most > 40, "{most}");
}
