//! Cleaning: it reads only indexes where it can, limits its pace, bounds the disk usage, and does not block other
//! operations.

use crate::hooked::{Hooked, hooked};
use crate::support::{
    Cut, HandClock, Lives, Random, Rig, clean, event, read_all, read_from, setting, small_options,
};
use parking_lot::Mutex;
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, BackupError, Chunk, CleanOptions, CleanReport, LiveCount, Liveness, Log, MissingReason, NewEvent,
    NoState, Options, Outcomes, ReadLimit, Step, TopicId, Unavailable, verify_storage,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u64 = 16 * 1024;

fn segment_bytes(disk: &Disk) -> u64 {
    let segments = disk.names().into_iter().filter(|name| name.ends_with(".seg"));
    segments.map(|name| disk.contents(&name).unwrap().len() as u64).sum()
}

fn checkpoints(rig: &Rig) -> Vec<String> {
    rig.disk.names().into_iter().filter(|name| name.ends_with(".ckpt")).collect()
}

#[test]
fn dead_segments_are_removed_without_being_read() {
    let (rig, hook) = hooked(&Disk::new(1), small_options());
    let topic = rig.fill("t", 600);
    let sparse = rig.fill("sparse", 300);
    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    *hook.lock() = Some(Box::new(move |name, _| {
        counter.fetch_add(u64::from(name.ends_with(".seg")), Ordering::Relaxed);
        Ok(())
    }));
    // Retention has removed all events of one topic, and compaction all events of the other one.
    struct Both(TopicId);
    impl Liveness for Both {
        fn first_live(&self, topic: TopicId) -> u64 {
            if topic == self.0 { 601 } else { 1 }
        }
        fn is_sparse(&self, topic: TopicId) -> bool {
            topic != self.0
        }
        fn live_in(&self, _topic: TopicId, _first_seq: u64, _last_seq: u64) -> Option<LiveCount> {
            Some(LiveCount { events: 0, bytes: 0 })
        }
        fn is_live(&self, topic: TopicId, seq: u64) -> bool {
            panic!("asked for {seq} of {topic:?} in a segment without a live event")
        }
    }
    let before = rig.log.stats().segments;
    let report = clean(&rig.log, &Both(topic)).unwrap();
    assert_eq!(report.segments_retired, before - 1, "{report:?}");
    assert_eq!(reads.load(Ordering::Relaxed), 0, "segments were read");
    rig.fill("sparse", 1);
    assert!(read_all(&rig.log, sparse).iter().any(|read| read.seq == 301));
}

#[test]
fn without_compaction_only_retention_applies_to_sparse_topics() {
    let rig = Rig::new(2);
    let topic = rig.fill("t", 400);
    let mut options = CleanOptions::default();
    (options.compact, options.duty_percent) = (false, 100);
    let report = rig.log.clean(&Lives(|_, _| false), &options).unwrap();
    assert_eq!(report, CleanReport::default());
    assert_eq!(read_all(&rig.log, topic).len(), 400);
}

#[test]
fn cleaning_writes_checkpoints_only_if_it_needs_them() {
    let options = Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(3), options).unwrap();
    let topic = rig.fill("t", 500);
    let (first, operations) = (checkpoints(&rig), rig.disk.operations());
    assert!(clean(&rig.log, &Cut(|_| 1)).unwrap().is_empty());
    assert_eq!(checkpoints(&rig), first);
    assert_eq!(rig.disk.operations(), operations, "the disk was written although there was nothing to clean");

    let report = clean(&rig.log, &Cut(|_| 501)).unwrap();
    assert!(report.segments_retired > 4, "{report:?}");
    assert_eq!(rig.log.stats().segments, 1, "only the growing segment may stay");
    assert!(checkpoints(&rig).iter().all(|name| !first.contains(name)));
    rig.settle();
    let rig = rig.reopen();
    assert_eq!(rig.log.last_seq(topic), 500);
}

/// The live events per topic: the first live seq and, in sparse topics, the live seqs above it.
struct Model {
    cuts: BTreeMap<TopicId, u64>,
    sparse: BTreeMap<TopicId, u64>,
    frame_bytes: u64,
}

impl Model {
    fn lives(&self, topic: TopicId, seq: u64) -> bool {
        seq >= self.cuts[&topic] && self.sparse.get(&topic).is_none_or(|step| seq % step == 0)
    }
}

impl Liveness for Model {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.cuts[&topic]
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.sparse.contains_key(&topic)
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let events = (first_seq..=last_seq).filter(|&seq| self.lives(topic, seq)).count() as u64;
        Some(LiveCount { events, bytes: events * self.frame_bytes })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        self.lives(topic, seq)
    }
}

#[test]
fn disk_usage_stays_within_twice_the_live_bytes_and_four_segments() {
    let first = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={first}");
    for seed in first..first + 60 {
        let mut random = Random::new(seed);
        let clock = HandClock::at(1_700_000_000_000);
        let options = Options { clock: Arc::<HandClock>::clone(&clock), ..small_options() };
        let rig = Rig::open(&Disk::new(seed), options).unwrap();
        let topics = ["a", "b", "c"].map(|name| rig.topic(name));
        let mut model = Model {
            cuts: topics.iter().map(|&topic| (topic, 1)).collect(),
            sparse: BTreeMap::from([(topics[2], random.between(2, 40))]),
            frame_bytes: 64 + 200,
        };
        for _ in 0..random.between(1, 4) {
            for _ in 0..random.between(50, 300) {
                let topic = topics[random.below(3) as usize];
                rig.put_events(&[event(topic, &[b'x'; 200])]);
            }
            for &topic in &topics {
                let last = rig.log.last_seq(topic);
                let cut = model.cuts[&topic].max(random.below(last + 2));
                model.cuts.insert(topic, if random.one_in(3) { 1.max(model.cuts[&topic]) } else { cut });
            }
            clean(&rig.log, &model).unwrap();
            for _ in 0..15 {
                clock.move_by(1_000);
                rig.settle();
            }
            let live: u64 = topics
                .iter()
                .flat_map(|&topic| (1..=rig.log.last_seq(topic)).map(move |seq| (topic, seq)))
                .filter(|&(topic, seq)| model.lives(topic, seq))
                .count() as u64
                * model.frame_bytes;
            let bound = 2 * live + 4 * SEGMENT_BYTES + 2 * 8 * 1024;
            let segments = segment_bytes(&rig.disk);
            assert!(segments <= bound, "seed {seed}: {segments} bytes for {live} live bytes");
            for &topic in &topics {
                let there: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
                let missing = (1..=rig.log.last_seq(topic))
                    .find(|seq| model.lives(topic, *seq) && there.binary_search(seq).is_err());
                assert_eq!(missing, None, "seed {seed}");
            }
            // A second cleaning does nothing.
            let operations = rig.disk.operations();
            assert!(clean(&rig.log, &model).unwrap().is_empty(), "seed {seed}");
            assert_eq!(rig.disk.operations(), operations, "seed {seed}");
        }
        let disk = rig.disk.clone();
        rig.log.close().unwrap();
        assert_eq!(verify_storage(Arc::new(disk), |_| {}).unwrap().faults, [], "seed {seed}");
    }
}

#[test]
fn retired_files_are_kept_for_publishers_and_removed_when_unused() {
    let clock = HandClock::at(1_700_000_000_000);
    let options = Options { clock: Arc::<HandClock>::clone(&clock), ..small_options() };
    let rig = Rig::open(&Disk::new(4), options).unwrap();
    rig.fill("t", 900);
    let files = || rig.disk.names().iter().filter(|name| name.ends_with(".seg")).count();
    clean(&rig.log, &Cut(|_| 901)).unwrap();
    rig.settle();
    // Eight retired files, the growing segment, a prepared one, and two reserves.
    assert_eq!(files(), 12);
    let mut left = Vec::new();
    for _ in 0..12 {
        clock.move_by(1_000);
        rig.settle();
        left.push(files());
    }
    assert_eq!(left, [12, 12, 12, 11, 10, 9, 8, 7, 6, 5, 5, 5]);
    // The file that was kept is recycled.
    let names = rig.disk.names();
    while rig.log.stats().segments < 2 {
        rig.fill("t", 1);
    }
    let new = rig.disk.names().into_iter().filter(|name| name.ends_with(".seg") && !names.contains(name));
    assert_eq!((new.count(), files()), (1, 5));
}

#[test]
fn a_reader_in_the_middle_of_a_segment_that_is_recycled_gets_the_right_data() {
    let options = Options { tail_bytes: 0, ..small_options() };
    let (rig, hook) = hooked(&Disk::new(5), options);
    let topic = rig.fill("t", 400);
    let other = rig.topic("other");
    let log = rig.log.clone();
    let done = Arc::new(Mutex::new(None));
    let result = Arc::clone(&done);
    *hook.lock() = Some(Box::new(move |name, _| {
        // During the read the segment is cleaned away, and retired files are recycled.
        if name.ends_with(".seg") && result.lock().is_none() {
            let report = clean(&log, &Cut(|id| if id == topic { 401 } else { 1 })).unwrap();
            for _ in 0..300 {
                let append = Append { events: &[event(other, &[b'y'; 200])], ..Append::default() };
                let _ = log.try_append(&append, &mut Outcomes::default());
                while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
            }
            *result.lock() = Some(report.segments_retired);
        }
        Ok(())
    }));
    let mut chunk = Chunk::default();
    rig.log.read(topic, 1, ReadLimit { events: 50, bytes: 1 << 20 }, &mut chunk).unwrap();
    assert!(done.lock().is_some_and(|retired| retired > 3));
    assert_eq!(rig.log.last_seq(other), 300);
    assert!(chunk.missing().is_empty(), "{:?}", chunk.missing());
    assert!(!chunk.is_empty());
    for (at, read) in chunk.events().enumerate() {
        assert_eq!(read.seq, at as u64 + 1);
        assert!(read.body.starts_with(format!("{{\"n\":{},", at + 1).as_bytes()));
    }
    // The next read finds that the events were cleaned.
    rig.log.read(topic, chunk.next_seq(), ReadLimit::default(), &mut chunk).unwrap();
    assert!(chunk.missing().iter().all(|missing| missing.reason == MissingReason::Cleaned));
    assert!(rig.listener.faults().is_empty());
}

#[test]
fn a_live_damaged_event_stays_damaged_and_hides_no_other() {
    let options = || Options { tail_bytes: 0, ..small_options() };
    let rig = Rig::open(&Disk::new(6), options()).unwrap();
    let topic = rig.fill("t", 500);
    let name = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let bytes = rig.disk.contents(&name).unwrap();
    let body = bytes.windows(9).position(|window| window == b"{\"n\":20,\"").unwrap() as u64;
    rig.disk.flip_bit(&name, body + 3, 1);
    clean(&rig.log, &Lives(|_, seq| seq % 10 == 0)).unwrap();
    rig.settle();
    let mut chunk = Chunk::default();
    rig.log.read(topic, 15, ReadLimit { events: 30, bytes: 1 << 20 }, &mut chunk).unwrap();
    let is_corrupt = |missing: &prombus_log::Missing| {
        missing.reason == MissingReason::Corrupt && (missing.first_seq..=missing.last_seq).contains(&20)
    };
    assert!(chunk.missing().iter().any(is_corrupt), "{:?}", chunk.missing());
    let tenths: Vec<u64> =
        read_all(&rig.log, topic).iter().map(|read| read.seq).filter(|seq| seq % 10 == 0).collect();
    assert_eq!(tenths, (10..=500).step_by(10).filter(|&seq| seq != 20).collect::<Vec<_>>());
    assert_eq!(rig.listener.faults().len(), 1, "{:?}", rig.listener.faults());
    // Once no event in the segment lives, it is removed like any other.
    clean(&rig.log, &Cut(|_| 400)).unwrap();
    rig.settle();
    assert!(read_all(&rig.log, topic).first().unwrap().seq > 100);
    assert_eq!(rig.log.unavailable(), None);
}

#[test]
fn only_one_cleaning_runs_at_a_time() {
    let rig = Rig::new(7);
    rig.fill("t", 300);
    let inner = Mutex::new(None);
    let report = clean(
        &rig.log,
        &Lives(|_, seq| {
            inner.lock().get_or_insert_with(|| clean(&rig.log, &Cut(|_| u64::MAX)));
            seq % 20 == 0
        }),
    );
    assert!(!report.unwrap().is_empty());
    assert_eq!(inner.into_inner(), Some(Ok(CleanReport::default())));
}

/// A log with threads on a simulated disk with slow reads of segments.
fn slow_log(seed: u64) -> (Log, Disk, TopicId, Arc<AtomicU64>) {
    let disk = Disk::new(seed);
    let hook = crate::hooked::Hook::default();
    let storage = Hooked { disk: disk.clone(), hook: Arc::clone(&hook) };
    let options = Options {
        segment_bytes: 2 << 20,
        tail_bytes: 0,
        checkpoint_bytes: 1 << 20,
        threads: true,
        ..Options::default()
    };
    let log = Log::open_storage(Arc::new(storage), options, Box::new(NoState)).unwrap();
    let topic = log.ensure_topic("t").unwrap();
    let body = vec![b'x'; 10_000];
    for _ in 0..140 {
        let events: Vec<NewEvent<'_>> = (0..10).map(|_| event(topic, &body)).collect();
        let append = Append { events: &events, ..Append::default() };
        let ticket = log.append(&append, &mut Outcomes::default()).unwrap();
        log.wait(ticket).unwrap();
    }
    let reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reads);
    *hook.lock() = Some(Box::new(move |name, _| {
        if name.ends_with(".seg") {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }));
    (log, disk, topic, reads)
}

#[test]
fn cleaning_takes_no_more_than_its_share_of_the_time() {
    let (log, _disk, topic, reads) = slow_log(8);
    let mut options = CleanOptions::default();
    options.duty_percent = 20;
    let started = Instant::now();
    let report = log.clean(&Lives(|_, seq| seq % 5 == 0), &options).unwrap();
    let (took, reads) = (started.elapsed(), reads.load(Ordering::SeqCst));
    assert!(report.segments_rewritten > 3 && reads > 5, "{report:?} {reads}");
    // The reads alone take at most a fifth of the time.
    assert!(took >= Duration::from_millis(2) * (reads as u32 - 1) * 4, "{reads} reads in {took:?}");
    let fifths =
        read_from(&log, topic, 1, ReadLimit::default()).iter().filter(|read| read.seq % 5 == 0).count();
    assert_eq!(fifths, 280);
    log.close().unwrap();
}

#[test]
fn cleaning_an_idle_log_does_not_wait_for_the_maintenance_thread() {
    let (log, _disk, topic, _reads) = slow_log(13);
    // Wait until the maintenance thread is idle.
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    for floor in [200, 500, 900, 1_401] {
        assert!(!clean(&log, &Cut(|_| floor)).unwrap().is_empty());
    }
    assert!(started.elapsed() < Duration::from_millis(1_500), "{:?}", started.elapsed());
    assert_eq!(log.last_seq(topic), 1_400);
    log.close().unwrap();
}

#[test]
fn closing_ends_cleaning_soon_and_nothing_is_written_after_it() {
    for duty_percent in [1, 100] {
        let (log, disk, _topic, reads) = slow_log(9);
        let other = log.clone();
        std::thread::scope(|scope| {
            let cleaner = scope.spawn(move || {
                let mut options = CleanOptions::default();
                options.duty_percent = duty_percent;
                let cleaned = other.clean(&Lives(|_, seq| seq % 5 == 0), &options);
                (Instant::now(), cleaned)
            });
            while reads.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let closing = Instant::now();
            log.close().unwrap();
            let operations = disk.operations();
            let (ended, _) = cleaner.join().unwrap();
            let took = ended.saturating_duration_since(closing);
            assert!(took < Duration::from_millis(500), "cleaning continued for {took:?}");
            assert_eq!(disk.operations(), operations);
        });
        assert_eq!(verify_storage(Arc::new(disk), |_| {}).unwrap().faults, []);
    }
}

#[test]
fn closing_ends_a_backup_soon_and_leaves_no_part_of_it() {
    let (log, disk, _topic, reads) = slow_log(11);
    let other = log.clone();
    let copy = Disk::new(12);
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| other.backup_storage(Arc::new(copy.clone()), &mut |_| {}));
        while reads.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        log.close().unwrap();
        let operations = disk.operations();
        assert!(matches!(backup.join().unwrap(), Err(BackupError::Unavailable(Unavailable::Closed))));
        assert_eq!(disk.operations(), operations);
    });
    assert_eq!(copy.names(), Vec::<String>::new());
}

#[test]
fn publishing_continues_while_liveness_is_evaluated() {
    let rig = Rig::new(10);
    rig.fill("t", 300);
    let other = rig.topic("other");
    let report = clean(
        &rig.log,
        &Lives(|topic, seq| {
            if topic != other && seq == 100 {
                rig.fill("other", 300);
            }
            topic == other || seq % 10 == 0
        }),
    );
    assert!(report.unwrap().segments_rewritten > 2);
    assert_eq!(read_all(&rig.log, other).len() as u64, rig.log.last_seq(other));
}
