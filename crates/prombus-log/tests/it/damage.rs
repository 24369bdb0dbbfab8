//! One flipped bit anywhere is found and reported. The damaged event is never served, and all others are.

use crate::support::{Lives, Random, Read, Rig, clean, event, last_commit, read_all, setting, small_options};
use prombus_log::storage::Storage;
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, Fault, FaultKind, MissingReason, NewEvent, NewState, Notice, Options, ReadLimit, TopicId,
    verify_storage,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const TOPICS: [&str; 3] = ["a", "b", "c"];

/// A log with all kinds of content: several topics, keys, publishers' ids, state records, and bodies that imitate frames.
fn build(seed: u64, close: bool) -> (Disk, BTreeMap<&'static str, Vec<Read>>) {
    let rig = Rig::new(seed);
    let mut random = Random::new(seed);
    let topics = TOPICS.map(|name| rig.topic(name));
    for number in 1..=120_u64 {
        let mut body = format!("event {number} ").into_bytes();
        body.extend_from_slice(&[0xf5, b'p', b'm', b'b']);
        body.extend((0..random.below(150)).map(|_| random.next() as u8));
        let key = format!("key-{}", number % 5);
        let new = |at: u64| NewEvent {
            key: (at % 3 == 0).then_some(key.as_bytes()),
            id: (at % 4 == 0).then(|| prombus_log::EventId::from_u128(u128::from(number * 100 + at))),
            ts: number as i64,
            ..event(topics[(at % 3) as usize], &body)
        };
        let events: Vec<NewEvent<'_>> = (0..random.between(1, 4)).map(|at| new(number + at)).collect();
        let state = number.to_le_bytes();
        let states = [NewState { tag: number as u32, body: &state }];
        rig.put(&Append { events: &events, states: &states, use_reserve: false });
    }
    let content = read_everything(&rig);
    let disk = if close {
        let disk = rig.disk.clone();
        rig.log.close().unwrap();
        disk
    } else {
        let survivor = rig.disk.fork();
        rig.disk.cut_after(0);
        survivor
    };
    (disk, content)
}

fn read_everything(rig: &Rig) -> BTreeMap<&'static str, Vec<Read>> {
    TOPICS
        .into_iter()
        .map(|name| (name, rig.log.topic(name).map_or(Vec::new(), |topic| read_all(&rig.log, topic))))
        .collect()
}

/// Returns the missing events after the flip, and checks that all others are unchanged.
fn missing(content: &BTreeMap<&'static str, Vec<Read>>, rig: &Rig, place: &str) -> Vec<(&'static str, u64)> {
    let now = read_everything(rig);
    let mut missing = Vec::new();
    for (topic, events) in content {
        let mut there = now[topic].iter().peekable();
        for event in events {
            match there.peek() {
                Some(read) if read.seq == event.seq => {
                    assert_eq!(*read, event, "{place}: {topic} {} is served changed", event.seq);
                    there.next();
                }
                _ => missing.push((*topic, event.seq)),
            }
        }
        assert_eq!(there.next(), None, "{place}: {topic} has events that were never published");
    }
    missing
}

/// The used part of each file.
fn used_parts(disk: &Disk) -> Vec<(String, Vec<std::ops::Range<u64>>)> {
    let mut parts = Vec::new();
    for name in disk.names() {
        let bytes = disk.contents(&name).unwrap();
        let length = bytes.len() as u64;
        if name.ends_with(".seg") {
            let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1);
            parts.push((name, vec![0..64, 4096..used.max(4096)]));
        } else if name == "MANIFEST" || name.ends_with(".ckpt") || name.ends_with(".idx") {
            parts.push((name, std::iter::once(0..length).collect()));
        }
    }
    parts
}

fn names(fault: &Fault, topic: &str, seq: u64) -> bool {
    let range = fault.seq.map(|first| first..=fault.last_seq.unwrap_or(first));
    fault.topic.as_deref() == Some(topic) && range.is_some_and(|range| range.contains(&seq))
}

fn flip_everywhere(close: bool, flips: u64) {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    let (disk, content) = build(seed, close);
    let total: usize = content.values().map(Vec::len).sum();
    assert!(total > 200);
    let mut random = Random::new(seed);
    let parts = used_parts(&disk);
    assert!(parts.iter().filter(|(name, _)| name.ends_with(".seg")).count() >= 4);
    let bytes: u64 = parts.iter().flat_map(|(_, ranges)| ranges).map(|range| range.end - range.start).sum();
    let every = (bytes / flips).max(1);
    let mut counter = random.below(every);
    let mut lost_one = 0;
    let mut lost_none = 0;
    for (name, ranges) in &parts {
        for position in ranges.iter().cloned().flatten() {
            counter += 1;
            if counter % every != 0 {
                continue;
            }
            let bit = random.below(8) as u8;
            let place = format!("{name} at {position} bit {bit}");
            let damaged = disk.fork();
            damaged.flip_bit(name, position, bit);
            let report = verify_storage(Arc::new(damaged.clone()), |_| {})
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            let torn_tail_is_cut = !close && report.torn_tail_bytes > 0;
            let is_named = report.faults.iter().any(|fault| fault.file == *name);
            assert!(is_named || torn_tail_is_cut, "{place} was not found: {:?}", report.faults);

            let options = Options { tail_bytes: 0, ..small_options() };
            let rig = Rig::open(&damaged, options).unwrap_or_else(|error| panic!("{place}: {error}"));
            let missing = missing(&content, &rig, &place);
            if torn_tail_is_cut {
                // Nothing proves that the last batch was durable: all of it is cut off, and its bytes are kept.
                assert!(missing.len() <= 4, "{place}: {missing:?}");
                let kept = damaged.names().into_iter().any(|name| name.starts_with("cut-"));
                assert!(kept, "{place}: the cut bytes are not kept: {report:?} {:?}", rig.listener.notices());
                continue;
            }
            assert!(missing.len() <= 1, "{place} cost {missing:?}");
            if let Some(&(topic, seq)) = missing.first() {
                lost_one += 1;
                let at_open_or_read = rig.listener.faults();
                assert!(
                    at_open_or_read.iter().any(|fault| names(fault, topic, seq)),
                    "{place}: {at_open_or_read:?}"
                );
                assert!(
                    report.faults.iter().any(|fault| names(fault, topic, seq)),
                    "{place}: {:?}",
                    report.faults
                );
                let topic = rig.log.topic(topic).unwrap();
                let mut chunk = prombus_log::Chunk::default();
                rig.log.read(topic, seq, ReadLimit::default(), &mut chunk).unwrap();
                assert_eq!(chunk.missing()[0].reason, MissingReason::Corrupt, "{place}");
            } else {
                lost_none += 1;
            }
            // The log can still be written, and a second open gives the same result.
            rig.fill("a", 1);
        }
    }
    println!("{bytes} bytes in use, {lost_one} flips cost their event, {lost_none} cost none");
    assert!(lost_one > 100 && lost_none > 100);
}

#[test]
fn a_flipped_bit_anywhere_in_a_closed_log_costs_at_most_its_own_event() {
    flip_everywhere(true, setting("PROMBUS_FLIPS", 4_000));
}

#[test]
fn a_flipped_bit_anywhere_after_a_crash_costs_at_most_its_own_event_or_the_last_batch() {
    flip_everywhere(false, setting("PROMBUS_FLIPS", 2_000));
}

#[test]
fn damage_is_reported_once_and_counted() {
    let (disk, _) = build(3, true);
    let segment = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let bytes = disk.contents(&segment).unwrap();
    let body = bytes.windows(8).position(|window| window == b"event 3 ").unwrap() as u64;
    disk.flip_bit(&segment, body, 0);
    let rig = Rig::open(&disk, Options { tail_bytes: 0, ..small_options() }).unwrap();
    for _ in 0..3 {
        read_everything(&rig);
    }
    let faults = rig.listener.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].what, FaultKind::Event);
    assert_eq!(rig.log.stats().faults, 1);
    let text = faults[0].to_string();
    assert!(text.contains(&segment) && text.contains("topic") && text.contains("seq"), "{text}");
}

#[test]
fn a_body_that_contains_a_whole_segment_is_not_taken_for_frames() {
    let (other, _) = build(4, true);
    let segment = other.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    // Valid frames of another log, published as a body.
    let stolen = other.contents(&segment).unwrap()[4096..9000].to_vec();
    let rig = Rig::new(5);
    let topic = rig.fill("t", 3);
    rig.put_events(&[event(topic, &stolen)]);
    rig.fill("t", 3);
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    for damage in [false, true] {
        let disk = survivor.fork();
        if damage {
            let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
            let bytes = disk.contents(&name).unwrap();
            let start = bytes.windows(200).position(|window| *window == stolen[..200]).unwrap() as u64;
            // The header of the event is damaged, so the search for the next frame scans its body.
            disk.flip_bit(&name, start - 40, 2);
        }
        let rig = Rig::open(&disk, small_options()).unwrap();
        assert_eq!(rig.log.topics().len(), 1, "a topic was read from a body");
        let events = read_all(&rig.log, topic);
        assert_eq!(events.len(), if damage { 6 } else { 7 });
        assert!(rig.state.all().is_empty(), "state records were read from a body");
    }
}

/// Options without checkpoints, so that all segments are replayed.
fn never_checkpointed() -> Options {
    Options { checkpoint_bytes: 1 << 30, ..small_options() }
}

/// A log that was killed right after the first batch of its second segment, with its topic and newest seq.
fn crashed_in_second_segment(seed: u64) -> (Disk, TopicId, u64) {
    let rig = Rig::open(&Disk::new(seed), never_checkpointed()).unwrap();
    let topic = rig.fill("t", 1);
    while rig.log.stats().segments == 1 {
        rig.fill("t", 1);
    }
    let last = rig.log.last_seq(topic);
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    (survivor, topic, last)
}

#[test]
fn a_lost_commit_at_the_end_of_a_segment_costs_nothing_in_the_next() {
    let (survivor, topic, last) = crashed_in_second_segment(6);
    let first = survivor.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    survivor.flip_bit(&first, last_commit(&survivor, &first) + 30, 1);
    let rig = Rig::open(&survivor, never_checkpointed()).unwrap();
    assert_eq!(rig.log.last_seq(topic), last);
    assert_eq!(read_all(&rig.log, topic).len() as u64, last);
    assert_eq!(rig.listener.faults().len(), 1, "{:?}", rig.listener.faults());
}

#[test]
fn an_unfinished_first_batch_of_a_segment_is_not_a_fault() {
    let (survivor, topic, last) = crashed_in_second_segment(7);
    let is_second = |name: &String| {
        let bytes = survivor.contents(name).unwrap();
        name.ends_with(".seg")
            && bytes[4096..]
                .windows(12)
                .any(|window| window == format!("{{\"n\":{last},\"pad").as_bytes()[..12].to_vec())
    };
    let second = survivor.names().into_iter().find(is_second).unwrap();
    let mut bytes = survivor.contents(&second).unwrap();
    let commit = last_commit(&survivor, &second) as usize;
    bytes[commit..].fill(0);
    survivor.replace(&second, bytes);
    let report = verify_storage(Arc::new(survivor.clone()), |_| {}).unwrap();
    assert_eq!(report.faults, []);
    assert!(report.torn_tail_bytes > 0);
    let rig = Rig::open(&survivor, never_checkpointed()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len() as u64, last - 1);
    assert!(survivor.names().iter().any(|name| name.starts_with("cut-")));
    assert_eq!(rig.put_events(&[event(topic, b"again")])[0].seq, last);
}

#[test]
fn damage_in_a_rewritten_segment_hides_no_later_event_when_its_index_is_lost() {
    let rig = Rig::new(8);
    let topic = rig.fill("t", 300);
    // The live events form runs with gaps between them.
    let report = clean(&rig.log, &Lives(|_, seq| seq > 200 || seq % 20 < 4)).unwrap();
    assert!(report.segments_rewritten > 1, "{report:?}");
    let before: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let is_rewritten = |name: &String| name.ends_with(".seg") && disk.contents(name).unwrap()[36] == 1;
    let segment = disk.names().into_iter().find(is_rewritten).unwrap();
    let bytes = disk.contents(&segment).unwrap();
    let body = bytes.windows(9).position(|window| window == b"{\"n\":22,\"").unwrap() as u64;
    // In the header of seq 22, so that the next frame must be searched for.
    disk.flip_bit(&segment, body - 30, 1);
    Storage::remove(&disk, &segment.replace(".seg", ".idx")).unwrap();
    let rig = Rig::open(&disk, Options { tail_bytes: 0, ..small_options() }).unwrap();
    let after: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    let expected: Vec<u64> = before.into_iter().filter(|&seq| seq != 22).collect();
    assert_eq!(after, expected);
    let faults = rig.listener.faults();
    assert!(faults.iter().any(|fault| names(fault, "t", 22)), "{faults:?}");
}

#[test]
fn a_damaged_index_is_rebuilt_once() {
    let rig =
        Rig::open(&Disk::new(9), Options { tail_bytes: 0, index_cache_bytes: 0, ..small_options() }).unwrap();
    let topic = rig.fill("t", 300);
    let name = rig.disk.names().into_iter().find(|name| name.ends_with(".idx")).unwrap();
    let length = rig.disk.contents(&name).unwrap().len() as u64;
    for position in 512..length {
        rig.disk.flip_bit(&name, position, 3);
    }
    for _ in 0..5 {
        assert_eq!(read_all(&rig.log, topic).len(), 300);
        rig.settle();
    }
    let rebuilt =
        rig.listener.notices().into_iter().filter(|notice| matches!(notice, Notice::IndexRebuilt { .. }));
    assert_eq!(rebuilt.count(), 1);
    assert_eq!(rig.listener.faults().len(), 1);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    assert_eq!(verify_storage(Arc::new(disk), |_| {}).unwrap().faults, []);
}
