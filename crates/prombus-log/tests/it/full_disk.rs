//! On a full disk publishers are refused and consumers continue. Publishing resumes when cleaning or an operator frees
//! space.

use crate::support::{Cut, Lives, Rig, clean, event, read_all, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Append, AppendError, Log, NewState, Notice, OpenError, Outcomes, State, Step, TopicId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Publishes until the disk is full. Returns how many events were accepted.
fn fill_up(rig: &Rig, topic: TopicId) -> u64 {
    let append = Append { events: &[event(topic, &[b'x'; 200])], ..Append::default() };
    let mut outcomes = Outcomes::default();
    for _ in 0..100_000 {
        match rig.log.try_append(&append, &mut outcomes) {
            Ok(_) | Err(AppendError::QueueFull) => rig.settle(),
            Err(AppendError::StorageFull) => return rig.log.last_seq(topic),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the disk was never full");
}

fn full_rig(seed: u64) -> (Rig, TopicId, u64) {
    let rig = Rig::new(seed);
    let topic = rig.topic("t");
    rig.settle();
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 60 * 1024));
    let count = fill_up(&rig, topic);
    (rig, topic, count)
}

#[test]
fn a_full_disk_refuses_publishers_and_loses_nothing() {
    let (rig, topic, count) = full_rig(1);
    assert!(count > 50, "{count}");
    assert!(rig.log.unavailable().is_none(), "a full disk does not stop writing for good");
    let notices = rig.listener.notices();
    assert_eq!(notices.iter().filter(|notice| matches!(notice, Notice::StorageFull { .. })).count(), 1);
    let events = read_all(&rig.log, topic);
    assert!(events.iter().enumerate().all(|(at, read)| read.seq == at as u64 + 1));
    assert_eq!(events.len() as u64, count);
    // The refused publishes used no seq.
    rig.disk.set_capacity(None);
    rig.settle();
    assert_eq!(rig.put_events(&[event(topic, b"again")])[0].seq, count + 1);
    let notices = rig.listener.notices();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::StorageFreed)));
}

#[test]
fn state_records_use_the_reserve_when_publishers_are_refused() {
    let (rig, topic, count) = full_rig(2);
    for number in 1..=20_u64 {
        let body = number.to_le_bytes();
        let append = Append {
            states: &[NewState { tag: number as u32, body: &body }],
            use_reserve: true,
            ..Append::default()
        };
        rig.put(&append);
    }
    let append = Append { events: &[event(topic, b"x")], ..Append::default() };
    let refused = rig.log.try_append(&append, &mut Outcomes::default());
    assert_eq!(refused, Err(AppendError::StorageFull), "the reserve is not for publishers");
    rig.disk.set_capacity(None);
    let rig = rig.reopen();
    assert_eq!(rig.state.all(), (1..=20).collect::<Vec<_>>());
    assert_eq!(rig.log.last_seq(topic), count);
}

#[test]
fn publishing_resumes_after_cleaning_a_full_disk() {
    let (rig, topic, count) = full_rig(3);
    let report = clean(&rig.log, &Cut(|_| u64::MAX)).unwrap();
    assert!(report.segments_retired > 0, "{report:?}");
    rig.settle();
    let outcome = rig.put_events(&[event(topic, b"there is room")])[0];
    assert_eq!(outcome.seq, count + 1);
}

#[test]
fn a_disk_without_room_for_a_new_log_is_refused_and_left_empty() {
    let disk = Disk::new(4);
    disk.set_capacity(Some(10_000));
    match Rig::open(&disk, small_options()) {
        Err(error @ OpenError::Full { .. }) => assert!(error.to_string().contains("full"), "{error}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the log opened"),
    }
    assert_eq!(disk.used_bytes(), 0, "{:?}", disk.names());
}

/// A state with a snapshot so large that a checkpoint does not fit on the disk while other files do.
struct LargeState;

impl State for LargeState {
    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn apply(&mut self, _tag: u32, _body: &[u8]) {}

    fn snapshot(&self, into: &mut Vec<u8>) {
        into.resize(into.len() + 600 * 1024, 7);
    }
}

#[test]
fn a_close_without_room_for_its_checkpoint_loses_nothing() {
    let disk = Disk::new(5);
    let open = || Log::open_storage(Arc::new(disk.clone()), small_options(), Box::new(LargeState)).unwrap();
    let settle = |log: &Log| {
        while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
    };
    let log = open();
    let topic = log.ensure_topic("t").unwrap();
    let append = Append { events: &[event(topic, &[b'x'; 900])], ..Append::default() };
    let mut outcomes = Outcomes::default();
    for round in 0..18 {
        if round == 8 {
            // The manifest still fits, a checkpoint does not.
            disk.set_capacity(Some(disk.used_bytes() + 20_000));
        }
        log.try_append(&append, &mut outcomes).unwrap();
        settle(&log);
    }
    let count = log.last_seq(topic);
    log.close().unwrap();
    disk.set_capacity(None);
    let log = open();
    assert_eq!(log.last_seq(topic), count);
    assert_eq!(read_all(&log, topic).len() as u64, count);
}

#[test]
fn dead_segments_are_retired_when_there_is_no_room_to_rewrite_the_sparse_ones() {
    let rig = Rig::new(6);
    rig.fill("t", 600);
    rig.disk.set_capacity(Some(rig.disk.used_bytes()));
    // A few events live in the first segments, and none in later ones.
    let report = clean(&rig.log, &Lives(|_, seq| seq < 100 && seq % 20 == 0)).unwrap();
    assert!(report.segments_retired > 3, "{report:?}");
    assert!(rig.log.unavailable().is_none());
}

/// A state that keeps only its newest record.
#[derive(Clone, Default)]
struct Newest(Arc<AtomicU64>);

impl State for Newest {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.0.store(u64::from_le_bytes(snapshot.try_into().map_err(|_| "not 8 bytes")?), Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, _tag: u32, body: &[u8]) {
        self.0.store(u64::from_le_bytes(body[..8].try_into().unwrap()), Ordering::Relaxed);
    }

    fn snapshot(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.0.load(Ordering::Relaxed).to_le_bytes());
    }
}

/// A log on a disk that is full of events or of state records. Returns the number of the last state record.
fn fill_with(disk: &Disk, state: &Newest, with_events: bool) -> (Log, u64) {
    let log = Log::open_storage(Arc::new(disk.clone()), small_options(), Box::new(state.clone())).unwrap();
    let topic = log.ensure_topic("t").unwrap();
    settle(&log);
    disk.set_capacity(Some(disk.used_bytes() + 60 * 1024));
    let append = Append { events: &[event(topic, &[b'x'; 200])], ..Append::default() };
    let is_full = || match log.try_append(&append, &mut Outcomes::default()) {
        Ok(_) | Err(AppendError::QueueFull) => {
            settle(&log);
            false
        }
        Err(AppendError::StorageFull) => true,
        Err(error) => panic!("{error}"),
    };
    if with_events {
        while !is_full() {}
    }
    let mut number = 0;
    while put_state(&log, number + 1) {
        number += 1;
    }
    (log, number)
}

fn settle(log: &Log) {
    while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
}

/// Appends a state record. Returns false if the disk is full.
fn put_state(log: &Log, number: u64) -> bool {
    let mut body = [0; 100];
    body[..8].copy_from_slice(&number.to_le_bytes());
    let states = [NewState { tag: 1, body: &body }];
    let append = Append { states: &states, use_reserve: true, ..Append::default() };
    loop {
        match log.try_append(&append, &mut Outcomes::default()) {
            Ok(_) => break,
            Err(AppendError::QueueFull) => settle(log),
            Err(AppendError::StorageFull) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    settle(log);
    true
}

#[test]
fn cleaning_frees_a_disk_that_is_full_of_state_records() {
    let (disk, state) = (Disk::new(7), Newest::default());
    let (log, number) = fill_with(&disk, &state, false);
    assert!(number > 200, "{number}");
    let report = clean(&log, &Cut(|_| 1)).unwrap();
    assert!(report.segments_retired > 1, "{report:?}");
    settle(&log);
    assert!(put_state(&log, number + 1));
    // Publishers have room again as well.
    let topic = log.topic("t").unwrap();
    let append = Append { events: &[event(topic, b"x")], ..Append::default() };
    log.try_append(&append, &mut Outcomes::default()).unwrap();
    settle(&log);
    drop(log);
    let log = Log::open_storage(Arc::new(disk), small_options(), Box::new(state.clone())).unwrap();
    assert_eq!(state.0.load(Ordering::Relaxed), number + 1);
    assert_eq!(log.last_seq(topic), 1);
}

#[test]
fn the_reserve_is_used_repeatedly_while_the_disk_is_full_of_events() {
    let (disk, state) = (Disk::new(8), Newest::default());
    let (log, first) = fill_with(&disk, &state, true);
    let count = log.last_seq(log.topic("t").unwrap());
    let mut refusals = 0;
    let mut number = first;
    while number < first + 2_000 {
        if put_state(&log, number + 1) {
            number += 1;
        } else {
            refusals += 1;
            assert!(refusals < 200, "cleaning frees nothing: {number} records are written");
            clean(&log, &Cut(|_| 1)).unwrap();
            settle(&log);
            // Another program uses the space that other files freed.
            disk.set_capacity(Some(disk.used_bytes() + 2_000));
        }
    }
    assert!(refusals > 5, "{refusals}: the disk was not full");
    drop(log);
    let log = Log::open_storage(Arc::new(disk), small_options(), Box::new(state.clone())).unwrap();
    assert_eq!(state.0.load(Ordering::Relaxed), number);
    let topic = log.topic("t").unwrap();
    assert_eq!((log.last_seq(topic), read_all(&log, topic).len() as u64), (count, count));
}
