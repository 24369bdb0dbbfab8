//! Lookups of server ids: their cost does not depend on the position, and `try_append` does not block for them.

use crate::support::{event, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Append, AppendError, Log, NewEvent, Observer, Options, Outcome, Outcomes, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn large_options() -> Options {
    let mut options = small_options();
    options.segment_bytes = 64 << 20;
    options.batch_bytes = 32 << 20;
    options.tail_bytes = 64 << 20;
    options
}

fn append(log: &Log, events: &[NewEvent<'_>]) -> Vec<Outcome> {
    let mut outcomes = Outcomes::default();
    loop {
        match log.try_append(&Append { events, ..Append::default() }, &mut outcomes) {
            Err(AppendError::QueueFull) => {
                while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
            }
            appended => {
                appended.expect("appends");
                while log.step_commit() == Step::Worked {}
                return outcomes.to_vec();
            }
        }
    }
}

#[test]
fn ids_of_a_large_recent_batch_are_looked_up_as_fast_as_others() {
    let disk = Disk::new(1);
    let log =
        Log::open_storage(Arc::new(disk), large_options(), Box::new(prombus_log::NoState)).expect("opens");
    let topic = loop {
        match log.ensure_topic("t") {
            Err(AppendError::QueueFull) => {
                log.step_housekeeping();
            }
            topic => break topic.expect("makes a topic"),
        }
    };
    let events = vec![event(topic, &[b'x'; 90]); 100_000];
    let made = append(&log, &events);
    let started = Instant::now();
    // In order, as an import does, and in reverse order.
    for part in made.chunks(1_000) {
        let again: Vec<NewEvent<'_>> =
            part.iter().map(|it| NewEvent { id: Some(it.id), ..event(topic, b"again") }).collect();
        let outcomes = append(&log, &again);
        assert!(outcomes.iter().zip(part).all(|(it, first)| it.duplicate && it.seq == first.seq));
    }
    for first in made.iter().rev().step_by(10) {
        assert_eq!(log.find_id(topic, first.id).expect("reads"), Some(first.seq));
    }
    // A scan of the batch for each id would take about a minute.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[derive(Default)]
struct Rooms(AtomicUsize);

impl Observer for Rooms {
    fn room(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until a condition holds, which another thread makes true.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn try_append_does_not_wait_for_a_sync_to_look_up_an_id() {
    let disk = Disk::new(2);
    let rooms = Arc::new(Rooms::default());
    let mut options = small_options();
    options.threads = true;
    options.observer = Arc::clone(&rooms) as Arc<dyn Observer>;
    let log =
        Log::open_storage(Arc::new(disk.clone()), options, Box::new(prombus_log::NoState)).expect("opens");
    let topic = log.ensure_topic("t").expect("makes a topic");
    let mut outcomes = Outcomes::default();
    let first = [event(topic, b"first")];
    let ticket = log.append(&Append { events: &first, ..Append::default() }, &mut outcomes).expect("appends");
    log.wait(ticket).expect("is durable");
    disk.hold_syncs(true);
    let ticket = log.append(&Append { events: &first, ..Append::default() }, &mut outcomes).expect("appends");
    let made = outcomes[0];
    let again = move |log: &Log| {
        let events = [NewEvent { id: Some(made.id), ..event(topic, b"again") }];
        let mut outcomes = Outcomes::default();
        log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes).map(|_| outcomes[0])
    };
    let elsewhere = log.clone();
    let trying = std::thread::spawn(move || again(&elsewhere));
    soon("try_append waits for a sync", || trying.is_finished());
    let refused = trying.join().expect("does not panic");
    assert!(matches!(refused, Err(AppendError::QueueFull)), "{refused:?}");
    let rooms_before = rooms.0.load(Ordering::SeqCst);
    disk.hold_syncs(false);
    log.wait(ticket).expect("is durable");
    soon("the observer is told when to try again", || rooms.0.load(Ordering::SeqCst) > rooms_before);
    let known = again(&log).expect("the batch is durable at this point");
    assert_eq!((known.seq, known.duplicate), (made.seq, true));
    log.close().expect("closes");
}

#[test]
fn an_append_does_not_wait_for_an_id_above_all_server_ids() {
    let log = Log::open_storage(Arc::new(Disk::new(3)), small_options(), Box::new(prombus_log::NoState))
        .expect("opens");
    while log.step_housekeeping() == Step::Worked {}
    let topic = log.ensure_topic("t").expect("makes a topic");
    let made = append(&log, &[event(topic, b"first")])[0];
    // An id that looks like a server id, found by trial.
    let high = made.id.as_u128() + (1 << 100);
    let own = (0..200_000_u128).map(|at| prombus_log::EventId::from_u128(high + at));
    let own = own.clone().find(|&id| log.is_own_id(id)).expect("one id in 65,536 passes the check");
    let mut outcomes = Outcomes::default();
    let pending = [event(topic, b"pending")];
    log.try_append(&Append { events: &pending, ..Append::default() }, &mut outcomes).expect("appends");
    let events = [NewEvent { id: Some(own), ..event(topic, b"high") }];
    log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes).expect("appends");
    assert_eq!((outcomes[0].seq, outcomes[0].duplicate), (3, false));
}
