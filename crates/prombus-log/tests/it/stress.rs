//! Real threads on a real disk: publishers, readers, the committer, the maintenance thread and a cleaner at the same time.

use crate::support::{Lives, Random, SetOnDrop, clean, event, read_all, setting};
use prombus_log::{
    Append, Chunk, EventId, Liveness, Log, MissingReason, NewEvent, Options, Outcomes, ReadLimit, TopicId,
    verify,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("prombus-log-stress-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn options() -> Options {
    Options {
        segment_bytes: 128 * 1024,
        reserve_bytes: 16 * 1024,
        batch_bytes: 32 * 1024,
        tail_bytes: 64 * 1024,
        checkpoint_bytes: 96 * 1024,
        index_cache_bytes: 64 * 1024,
        ..Options::default()
    }
}

/// Publishes a few events, waits until they are durable, and returns id, seq and whether it is a duplicate, for each.
fn publish(
    log: &Log,
    topic: TopicId,
    thread: u64,
    random: &mut Random,
    ids: bool,
) -> Vec<(EventId, u64, bool)> {
    let count = random.between(1, 8);
    let bodies: Vec<Vec<u8>> = (0..count)
        .map(|at| format!("{thread} {at} {}", "x".repeat(random.below(400) as usize)).into_bytes())
        .collect();
    let events: Vec<NewEvent<'_>> = bodies
        .iter()
        .map(|body| NewEvent {
            id: ids.then(|| EventId::from_u128(random.below(20_000).into())),
            ..event(topic, body)
        })
        .collect();
    let mut outcomes = Outcomes::default();
    let ticket = log.append(&Append { events: &events, ..Append::default() }, &mut outcomes).unwrap();
    log.wait(ticket).unwrap();
    outcomes.iter().map(|outcome| (outcome.id, outcome.seq, outcome.duplicate)).collect()
}

/// Follows a topic, and checks that every seq is read once and in order, or is reported as cleaned.
fn follow(log: &Log, topic: TopicId, done: &AtomicBool) -> u64 {
    let mut chunk = Chunk::default();
    let mut next = 1;
    let mut seen = 0;
    loop {
        let is_last_round = done.load(Ordering::SeqCst);
        log.read(topic, next, ReadLimit { events: 50, bytes: 10_000 }, &mut chunk).unwrap();
        let mut expected = next;
        let mut missing = chunk.missing().iter().peekable();
        for event in chunk.events() {
            while let Some(gap) = missing.next_if(|gap| gap.first_seq == expected) {
                assert_eq!(gap.reason, MissingReason::Cleaned);
                expected = gap.last_seq + 1;
            }
            assert_eq!(event.seq, expected, "a seq was skipped or repeated");
            assert!(event.body.is_ascii());
            expected += 1;
            seen += 1;
        }
        let is_at_end = chunk.next_seq() == next;
        next = chunk.next_seq();
        if is_at_end && is_last_round {
            return seen;
        }
    }
}

fn run(name: &str, ids: bool, liveness: Option<&dyn LivenessOf>) {
    let seconds = setting("PROMBUS_STRESS_SECONDS", 3);
    let folder = folder(name);
    let log = Log::open(&folder, options()).unwrap();
    let topics = ["a", "b"].map(|topic| log.ensure_topic(topic).unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let done = AtomicBool::new(false);
    let published = AtomicU64::new(0);
    let seqs: parking_lot::Mutex<HashMap<(TopicId, EventId), u64>> = parking_lot::Mutex::default();
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&done);
        let publishers: Vec<_> = (0..3)
            .map(|thread| {
                let (log, seqs, published) = (&log, &seqs, &published);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    while Instant::now() < end {
                        let topic = topics[random.below(2) as usize];
                        for (id, seq, duplicate) in publish(log, topic, thread, &mut random, ids) {
                            published.fetch_add(u64::from(!duplicate), Ordering::SeqCst);
                            if ids {
                                let there = *seqs.lock().entry((topic, id)).or_insert(seq);
                                assert_eq!(there, seq, "an id has two seqs");
                            }
                        }
                    }
                })
            })
            .collect();
        let readers: Vec<_> = topics
            .map(|topic| {
                scope.spawn({
                    let (log, done) = (&log, &done);
                    move || follow(log, topic, done)
                })
            })
            .into();
        let cleaner = liveness.map(|liveness| {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut cleaned = 0;
                while !done.load(Ordering::SeqCst) {
                    cleaned += clean(log, &*liveness.now(log)).unwrap().events_removed;
                    std::thread::sleep(Duration::from_millis(5));
                }
                cleaned
            })
        });
        for publisher in publishers {
            publisher.join().unwrap();
        }
        drop(ends);
        let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        let cleaned = cleaner.map_or(0, |cleaner| cleaner.join().unwrap());
        let published = published.load(Ordering::SeqCst);
        println!("{published} published, {seen} seen, {cleaned} cleaned");
        assert!(published > 500);
        if liveness.is_none() {
            assert_eq!(seen, published);
        } else {
            assert!(cleaned > 0);
        }
    });
    let before: Vec<_> = topics.iter().map(|&topic| read_all(&log, topic)).collect();
    log.close().unwrap();
    assert_eq!(verify(&folder, |_| {}).unwrap().faults, []);
    let log = Log::open(&folder, options()).unwrap();
    for (topic, events) in topics.iter().zip(before) {
        assert_eq!(read_all(&log, *topic), events);
        if ids {
            for event in events {
                assert_eq!(log.find_id(*topic, event.id).unwrap(), Some(event.seq));
            }
        }
    }
    drop(log);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The liveness at a point in time.
trait LivenessOf: Sync {
    fn now(&self, log: &Log) -> Box<dyn Liveness>;
}

struct Recent;

impl LivenessOf for Recent {
    fn now(&self, log: &Log) -> Box<dyn Liveness> {
        let floors: HashMap<TopicId, u64> =
            log.topics().iter().map(|topic| (topic.id, topic.last_seq.saturating_sub(300))).collect();
        Box::new(Lives(move |topic, seq| seq > floors[&topic] || seq % 7 == 0))
    }
}

#[test]
fn publishers_with_the_same_ids_and_live_readers_agree_on_every_seq() {
    run("ids", true, None);
}

#[test]
fn cleaning_does_not_disturb_readers() {
    run("clean", false, Some(&Recent));
}
