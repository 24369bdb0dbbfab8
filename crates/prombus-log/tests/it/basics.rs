//! Appending and reading without faults.

use crate::support::{Cut, Lives, Remembered, Rig, clean, event, read_all, read_from, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, AppendError, Chunk, Log, MissingReason, NewEvent, NewState, Options, Outcomes, ReadLimit, Step,
    Unavailable,
};
use std::sync::Arc;

#[test]
fn seqs_start_at_one_and_have_no_gaps_in_each_topic() {
    let rig = Rig::new(1);
    let (a, b) = (rig.topic("a"), rig.topic("b"));
    let outcomes = rig.put_events(&[event(a, b"1"), event(b, b"2"), event(a, b"3")]);
    assert_eq!(outcomes.iter().map(|outcome| outcome.seq).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(rig.bodies(a), ["1", "3"]);
    assert_eq!(rig.bodies(b), ["2"]);
    assert_eq!((rig.log.last_seq(a), rig.log.last_seq(b)), (2, 1));
}

#[test]
fn nothing_is_visible_before_it_is_durable() {
    let rig = Rig::new(2);
    let topic = rig.topic("t");
    rig.settle();
    let mut outcomes = Outcomes::default();
    let append = Append { events: &[event(topic, b"x")], ..Append::default() };
    let ticket = rig.log.try_append(&append, &mut outcomes).unwrap();
    assert!(!rig.log.is_durable(ticket));
    assert!(read_all(&rig.log, topic).is_empty());
    assert_eq!(rig.log.find_id(topic, outcomes[0].id).unwrap(), None);
    assert_eq!(rig.log.step_commit(), Step::Worked);
    assert!(rig.log.is_durable(ticket));
    assert_eq!(read_all(&rig.log, topic).len(), 1);
}

#[test]
fn events_and_state_records_of_one_append_are_one_batch() {
    let rig = Rig::new(3);
    let topic = rig.topic("t");
    rig.settle();
    let batch = rig.log.durable_batch();
    let append = Append {
        events: &[event(topic, b"dead letter")],
        states: &[
            NewState { tag: 1, body: &1_u64.to_le_bytes() },
            NewState { tag: 2, body: &2_u64.to_le_bytes() },
        ],
        use_reserve: false,
    };
    rig.put(&append);
    assert_eq!(rig.log.durable_batch(), batch + 1);
    let rig = rig.reopen();
    assert_eq!(rig.state.all(), [1, 2]);
}

#[test]
fn many_appends_share_one_commit() {
    let rig = Rig::new(4);
    let topic = rig.topic("t");
    rig.settle();
    let operations = rig.disk.operations();
    let mut outcomes = Outcomes::default();
    for _ in 0..20 {
        rig.log
            .try_append(&Append { events: &[event(topic, b"x")], ..Append::default() }, &mut outcomes)
            .unwrap();
    }
    assert_eq!(rig.log.step_commit(), Step::Worked);
    assert_eq!(rig.log.step_commit(), Step::Idle);
    assert_eq!(rig.disk.operations() - operations, 2, "one write and one sync");
    assert_eq!(rig.log.last_seq(topic), 20);
}

#[test]
fn the_queue_is_bounded() {
    let rig = Rig::new(5);
    let topic = rig.topic("t");
    let body = vec![b'x'; 1000];
    let append = Append { events: &[event(topic, &body)], ..Append::default() };
    let mut outcomes = Outcomes::default();
    let taken = (0..100).take_while(|_| rig.log.try_append(&append, &mut outcomes).is_ok()).count();
    assert!((2..=4).contains(&taken), "a queue of 4 KB accepted {taken} appends of 1 KB");
    assert_eq!(rig.log.try_append(&append, &mut outcomes), Err(AppendError::QueueFull));
    rig.settle();
    assert!(rig.log.try_append(&append, &mut outcomes).is_ok());
}

#[test]
fn tail_and_files_serve_the_same_bytes() {
    for tail_bytes in [0, 2_000, 1 << 20] {
        let rig = Rig::open(&Disk::new(6), Options { tail_bytes, ..small_options() }).unwrap();
        let topic = rig.fill("t", 300);
        rig.fill("other", 50);
        rig.fill("t", 100);
        for limit in [
            ReadLimit { events: 1, bytes: usize::MAX },
            ReadLimit { events: usize::MAX, bytes: 1 },
            ReadLimit { events: 7, bytes: 900 },
            ReadLimit::default(),
        ] {
            for from in [1, 2, 150, 301, 399, 400] {
                let seqs: Vec<u64> =
                    read_from(&rig.log, topic, from, limit).iter().map(|read| read.seq).collect();
                assert_eq!(seqs, (from..=400).collect::<Vec<_>>(), "tail {tail_bytes} from {from} {limit:?}");
            }
        }
        assert!(read_from(&rig.log, topic, 401, ReadLimit::default()).is_empty());
    }
}

#[test]
fn an_event_larger_than_the_queue_is_appended_alone_and_one_larger_than_a_segment_is_refused() {
    let rig = Rig::new(7);
    let topic = rig.topic("t");
    rig.put_events(&[event(topic, b"before")]);
    let large = vec![b'x'; 11_000];
    rig.put_events(&[event(topic, &large)]);
    let huge = vec![b'x'; 13_000];
    let mut outcomes = Outcomes::default();
    let refused =
        rig.log.try_append(&Append { events: &[event(topic, &huge)], ..Append::default() }, &mut outcomes);
    assert!(matches!(refused, Err(AppendError::TooLarge { .. })), "{refused:?}");
    rig.put_events(&[event(topic, b"after")]);
    assert_eq!(rig.bodies(topic)[1].len(), 11_000);
    assert_eq!(rig.log.last_seq(topic), 3, "the refused event used no seq");
}

#[test]
fn ids_and_commit_times_increase_when_the_clock_goes_back() {
    let disk = Disk::new(8);
    let clock = crate::support::HandClock::at(5_000);
    let options = || Options { clock: Arc::<crate::support::HandClock>::clone(&clock), ..small_options() };
    let rig = Rig::open(&disk, options()).unwrap();
    let topic = rig.fill("t", 5);
    clock.move_by(-4_000);
    rig.fill("t", 5);
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, options()).unwrap();
    rig.fill("t", 5);
    let events = read_all(&rig.log, topic);
    assert_eq!(events.len(), 15);
    assert!(events.is_sorted_by(|a, b| a.id < b.id && a.commit_ms <= b.commit_ms));
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_can_be_used_again() {
    let rig = Rig::new(9);
    let old = rig.fill("t", 3);
    rig.log.delete_topic(old).unwrap();
    rig.settle();
    assert_eq!(rig.log.topic("t"), None);
    assert!(rig.log.read(old, 1, ReadLimit::default(), &mut Chunk::default()).is_err());
    let append = Append { events: &[event(old, b"x")], ..Append::default() };
    let refused = rig.log.try_append(&append, &mut Outcomes::default());
    assert_eq!(refused, Err(AppendError::UnknownTopic(old.number())));
    let new = rig.fill("t", 1);
    assert_ne!(old, new);
    assert_eq!(rig.log.last_seq(new), 1);
    let rig = rig.reopen();
    assert_eq!(rig.log.topic("t"), Some(new));
    assert_eq!(rig.bodies(new).len(), 1);
    assert_eq!(rig.log.topics().len(), 1);
}

#[test]
fn cleaning_recycles_dead_segments_and_seqs_continue() {
    let rig = Rig::new(10);
    let topic = rig.fill("t", 600);
    let before = rig.log.stats();
    let report = clean(&rig.log, &Cut(|_| 500)).unwrap();
    assert!(report.segments_retired > 3, "{report:?}");
    rig.settle();
    assert!(rig.log.stats().bytes < before.bytes / 2);
    let first = rig.log.first_seq(topic).unwrap().unwrap();
    assert!((2..=500).contains(&first), "{first}");

    let mut chunk = Chunk::default();
    rig.log.read(topic, 1, ReadLimit::default(), &mut chunk).unwrap();
    let missing = chunk.missing()[0];
    assert_eq!((missing.first_seq, missing.last_seq, missing.reason), (1, first - 1, MissingReason::Cleaned));
    assert_eq!(chunk.events().next().unwrap().seq, first);

    let used = rig.disk.used_bytes();
    rig.fill("t", 200);
    assert_eq!(rig.log.last_seq(topic), 800);
    assert!(rig.disk.used_bytes() < used + 64 * 1024, "retired files were not recycled");
    let rig = rig.reopen();
    assert_eq!(rig.log.last_seq(topic), 800);
    assert!(rig.listener.faults().is_empty());
}

#[test]
fn cleaning_rewrites_mostly_dead_segments_and_keeps_the_rest() {
    let rig = Rig::new(11);
    let (a, b) = (rig.fill("a", 1), rig.fill("b", 1));
    for _ in 0..20 {
        rig.fill("a", 15);
        rig.fill("b", 15);
    }
    let report = clean(&rig.log, &Lives(|_, seq| seq % 10 == 0)).unwrap();
    assert!(report.segments_rewritten > 3, "{report:?}");
    rig.settle();
    let check = |rig: &Rig| {
        for topic in [a, b] {
            let events = read_all(&rig.log, topic);
            for tenth in (10..=300).step_by(10) {
                let found = events.iter().find(|read| read.seq == tenth).unwrap();
                assert!(found.body.starts_with(format!("{{\"n\":{tenth},").as_bytes()));
                assert_eq!(rig.log.find_id(topic, found.id).unwrap(), Some(tenth));
            }
            assert!(events.len() < 200, "{} of 301 events are left", events.len());
        }
    };
    check(&rig);
    let rig = rig.reopen();
    check(&rig);
    assert!(rig.listener.faults().is_empty());
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let report = prombus_log::verify_storage(Arc::new(disk), |_| {}).unwrap();
    assert_eq!(report.faults, []);
}

#[test]
fn a_closed_log_refuses_appends_and_still_reads() {
    let rig = Rig::new(12);
    let topic = rig.fill("t", 3);
    let other = rig.log.clone();
    rig.log.close().unwrap();
    let append = Append { events: &[event(topic, b"x")], ..Append::default() };
    let refused = other.try_append(&append, &mut Outcomes::default());
    assert_eq!(refused, Err(AppendError::Unavailable(Unavailable::Closed)));
    assert_eq!(read_all(&other, topic).len(), 3);
}

#[test]
fn threads_that_publish_at_once_are_all_acknowledged_in_seq_order() {
    let folder = std::env::temp_dir().join(format!("prombus-log-threads-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options = Options { segment_bytes: 256 * 1024, tail_bytes: 64 * 1024, ..Options::default() };
    let state = Remembered::default();
    let log = Log::open_with_state(&folder, options.clone(), Box::new(state)).unwrap();
    let topics = ["a", "b", "c"].map(|name| log.ensure_topic(name).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let log = log.clone();
            scope.spawn(move || {
                let mut outcomes = Outcomes::default();
                for round in 0..200_u64 {
                    let bodies: Vec<String> =
                        (0..10).map(|n| format!("{thread} {:06}", round * 10 + n)).collect();
                    let events: Vec<NewEvent<'_>> = bodies
                        .iter()
                        .enumerate()
                        .map(|(at, body)| event(topics[at % 3], body.as_bytes()))
                        .collect();
                    let append = Append { events: &events, ..Append::default() };
                    let ticket = log.append(&append, &mut outcomes).unwrap();
                    log.wait(ticket).unwrap();
                    assert!(log.last_seq(topics[0]) >= outcomes[0].seq, "a durable event is not visible");
                }
            });
        }
    });
    let check = |log: &Log| {
        let mut count = 0;
        for topic in topics {
            let events = read_all(log, topic);
            assert!(events.iter().enumerate().all(|(at, read)| read.seq == at as u64 + 1));
            for thread in ["0 ", "1 ", "2 ", "3 "] {
                let bodies: Vec<_> =
                    events.iter().filter(|read| read.body.starts_with(thread.as_bytes())).collect();
                assert!(bodies.is_sorted_by(|a, b| a.body < b.body), "a thread's events are out of order");
            }
            count += events.len();
        }
        assert_eq!(count, 8_000);
    };
    check(&log);
    log.close().unwrap();
    let log = Log::open(&folder, options).unwrap();
    check(&log);
    drop(log);
    assert_eq!(prombus_log::verify(&folder, |_| {}).unwrap().faults, []);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_newest_events_are_in_memory_and_older_ones_are_not() {
    let rig = Rig::open(&Disk::new(1), Options { tail_bytes: 2_048, ..small_options() }).unwrap();
    let topic = rig.fill("t", 200);
    let in_memory: Vec<bool> = (0..=201).map(|seq| rig.log.is_in_memory(topic, seq)).collect();
    assert!(!in_memory[1] && in_memory[200] && !in_memory[201]);
    assert!(in_memory[..=200].is_sorted(), "there is a gap");
    rig.log.delete_topic(topic).unwrap();
    rig.settle();
    assert!(!rig.log.is_in_memory(topic, 200));
}
