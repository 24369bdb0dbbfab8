//! The log on storage in memory.

use crate::support::{Cut, Remembered, clean, event, read_all, small_options};
use prombus_log::storage::RamStorage;
use prombus_log::{Append, AppendError, Log, NewState, Options, Outcomes, Step};
use std::sync::Arc;

fn open(ram: &RamStorage, options: Options, state: &Remembered) -> Log {
    Log::open_storage(Arc::new(ram.clone()), options, Box::new(state.clone())).unwrap()
}

fn settle(log: &Log) {
    while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
}

/// Appends an event and commits it.
fn put(log: &Log, topic: prombus_log::TopicId, body: &[u8]) -> Result<(), AppendError> {
    let events = [event(topic, body)];
    let ticket = loop {
        match log.try_append(&Append { events: &events, ..Append::default() }, &mut Outcomes::default()) {
            Err(AppendError::QueueFull) => settle(log),
            result => break result?,
        }
    };
    settle(log);
    assert!(log.is_durable(ticket));
    Ok(())
}

#[test]
fn a_log_in_memory_is_complete_when_it_is_opened_again() {
    let ram = RamStorage::new();
    let log = open(&ram, small_options(), &Remembered::default());
    let topic = log.ensure_topic("orders").unwrap();
    for n in 0..300_u64 {
        put(&log, topic, format!("{{\"n\":{n}}}").repeat(8).as_bytes()).unwrap();
        let states = [NewState { tag: n as u32, body: &n.to_le_bytes() }];
        log.try_append(&Append { states: &states, ..Append::default() }, &mut Outcomes::default()).unwrap();
        settle(&log);
    }
    let before = read_all(&log, topic);
    assert_eq!(before.len(), 300);
    assert!(log.stats().segments > 3, "segments were sealed and indexed");
    log.close().unwrap();

    let state = Remembered::default();
    let log = open(&ram, small_options(), &state);
    assert_eq!(log.topic("orders"), Some(topic));
    assert_eq!(read_all(&log, topic), before);
    assert_eq!(state.all(), (0..300).collect::<Vec<_>>());
    put(&log, topic, b"later").unwrap();
    assert_eq!(log.last_seq(topic), 301);
}

#[test]
fn a_log_in_memory_runs_with_its_own_threads_and_uses_no_memory_for_prepared_segments() {
    let ram = RamStorage::new();
    let log = open(&ram, Options::default(), &Remembered::default());
    let topic = log.ensure_topic("orders").unwrap();
    let events = [event(topic, b"{}")];
    let append = Append { events: &events, ..Append::default() };
    let ticket = log.append(&append, &mut Outcomes::default()).unwrap();
    log.wait(ticket).unwrap();
    log.close().unwrap();
    assert!(ram.length_bytes() >= 6 << 20, "a second segment was prepared");
    assert!(ram.memory_bytes() < 1 << 20, "{} bytes are used", ram.memory_bytes());
}

#[test]
fn a_full_memory_refuses_publishers_until_cleaning_frees_it() {
    let ram = RamStorage::with_limit(160 * 1024);
    let log = open(&ram, small_options(), &Remembered::default());
    let topic = log.ensure_topic("orders").unwrap();
    let refused = loop {
        if let Err(error) = put(&log, topic, &[b'x'; 1000]) {
            break error;
        }
    };
    assert!(matches!(refused, AppendError::StorageFull), "{refused}");
    assert!(log.unavailable().is_none());
    assert!(ram.length_bytes() <= 160 * 1024);
    let kept = log.last_seq(topic);
    assert!(kept > 30, "{kept} events fit");
    assert_eq!(read_all(&log, topic).len() as u64, kept);

    clean(&log, &Cut(|_| kept)).unwrap();
    settle(&log);
    put(&log, topic, b"there is room again").unwrap();
    log.close().unwrap();
    let log = open(&ram, small_options(), &Remembered::default());
    assert_eq!(log.last_seq(topic), kept + 1);
}

#[test]
fn cleaning_frees_the_memory_of_segments() {
    let ram = RamStorage::new();
    let log = open(&ram, small_options(), &Remembered::default());
    let topic = log.ensure_topic("orders").unwrap();
    for _ in 0..200 {
        put(&log, topic, &[b'x'; 1000]).unwrap();
    }
    let full = ram.memory_bytes();
    assert!(full > 200_000, "{full}");
    clean(&log, &Cut(|_| 200)).unwrap();
    settle(&log);
    assert!(ram.memory_bytes() < full / 3, "{} of {full} bytes are still used", ram.memory_bytes());
}
