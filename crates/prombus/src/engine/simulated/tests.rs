//! Tests of the simulated engine itself, without a bus.

use super::topic_events::TopicEvents;
use super::*;
use crate::clock::ManualClock;
use crate::engine::{
    AppendBatch, Appended, Engine, EngineObserver, EventId, EventScanner, Liveness, MayBlock, NewEvent,
    Published, TopicId, Visit,
};
use crate::error::{ReadError, StoreError, Unavailable};
use parking_lot::{Condvar, Mutex};
use prombus_protocol::Topic;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[derive(Default)]
struct RecordingObserver {
    calls: Mutex<Vec<String>>,
    changed: Condvar,
}

impl RecordingObserver {
    fn push(&self, call: String) {
        self.calls.lock().push(call);
        self.changed.notify_all();
    }

    fn wait_for(&self, call: &str) {
        let mut calls = self.calls.lock();
        while !calls.iter().any(|seen| seen.starts_with(call)) {
            assert!(
                !self.changed.wait_for(&mut calls, Duration::from_secs(10)).timed_out(),
                "{call}: {calls:?}"
            );
        }
    }
}

impl EngineObserver for RecordingObserver {
    fn committed(&self, commit: u64, newest: &mut dyn Iterator<Item = (TopicId, u64)>) {
        let newest: Vec<_> = newest.map(|(topic, seq)| (topic.number(), seq)).collect();
        self.push(format!("committed {commit} {newest:?}"));
    }
    fn room(&self) {
        self.push("room".to_owned());
    }
    fn suspended(&self, reason: String) {
        self.push(format!("suspended {reason}"));
    }
    fn resumed(&self) {
        self.push("resumed".to_owned());
    }
    fn deposed(&self, leader: String) {
        self.push(format!("deposed {leader}"));
    }
    fn stopped(&self, reason: Unavailable) {
        self.push(format!("stopped {reason}"));
    }
}

fn open(database: &Database, options: NetworkOptions) -> (SimulatedEngine, Arc<RecordingObserver>) {
    let engine = SimulatedEngine::open(database, options, Arc::new(ManualClock::new(1_000))).unwrap();
    let observer = Arc::new(RecordingObserver::default());
    engine.observe(Arc::clone(&observer) as Arc<dyn EngineObserver>);
    (engine, observer)
}

fn name(topic: &str) -> Topic {
    Topic::new(topic).unwrap()
}

fn event(topic: TopicId, id: Option<u128>, body: &[u8]) -> NewEvent<'_> {
    NewEvent { topic, id: id.map(EventId::from_u128), ts: 5, key: None, body, tombstone: false }
}

fn append(engine: &SimulatedEngine, events: &[NewEvent<'_>]) -> Result<Appended, StoreError> {
    engine.append(&AppendBatch { events, ..AppendBatch::default() }, &mut Vec::new())
}

fn wait_durable(engine: &SimulatedEngine, commit: u64) {
    for _ in 0..20_000 {
        if engine.commit_times(i64::MIN).durable_batch >= commit {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    panic!("commit {commit} did not become durable");
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Repeats a scan until it is ready. Returns the seqs, the result, and how often the scan was pending.
fn scan(
    scanner: &mut dyn EventScanner,
    topic: TopicId,
    (from, to): (u64, u64),
) -> (Vec<u64>, Result<crate::engine::Scanned, ReadError>, u32) {
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut pending = 0;
    loop {
        let mut seqs = Vec::new();
        let polled = scanner.poll_scan(topic, from, to, &mut Context::from_waker(&waker), &mut |event| {
            seqs.push(event.seq);
            Visit::Next
        });
        match polled {
            Poll::Ready(scanned) => return (seqs, scanned, pending),
            Poll::Pending => {
                assert!(seqs.is_empty(), "a pending scan visited events");
                pending += 1;
                for _ in 0..20_000 {
                    if flag.0.swap(false, Ordering::SeqCst) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        }
    }
}

fn read_all(engine: &SimulatedEngine, topic: TopicId) -> Vec<u64> {
    let mut scanner = engine.scanner();
    let (mut all, mut next, last) = (Vec::new(), 1, engine.last_seq(topic));
    while next <= last {
        let (seqs, scanned, _) = scan(&mut *scanner, topic, (next, last));
        all.extend(seqs);
        next = scanned.unwrap().next_seq;
    }
    all
}

#[test]
fn network_faults_neither_lose_nor_duplicate_events() {
    let options = NetworkOptions {
        commit_latency_us: 0..=200,
        answer_timeout_us: 300,
        lost_answers: 0.2,
        lost_requests: 0.1,
        late_requests: 0.1,
        outages: 0.02,
        outage_us: 100..=2_000,
        ..NetworkOptions::default()
    };
    let (engine, _) = open(&Database::new(), options);
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let publish = |thread: u128| {
        let mut published: Vec<Published> = Vec::new();
        for number in 0..500u128 {
            // Each chosen id is used by two threads.
            let id = (number % 3 == 0).then_some((thread / 2) << 32 | (number + 1));
            let appended = loop {
                match append(&engine, &[event(topic, id, b"x"), event(topic, None, b"y")]) {
                    Err(StoreError::Busy) => std::thread::sleep(Duration::from_micros(200)),
                    appended => break appended.unwrap(),
                }
            };
            if number % 20 == 0 {
                wait_durable(&engine, appended.commit);
                published.extend(appended.late.unwrap().take().unwrap());
            }
        }
        published
    };
    let published: Vec<Published> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || publish(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    engine.close(MayBlock::on_this_thread()).unwrap();
    // 4 * 500 events `y`, 4 * 333 events `x` without an id, and 2 * 167 events `x` whose id two threads share.
    let last_seq = 4 * 500 + 4 * 333 + 2 * 167;
    assert_eq!(engine.last_seq(topic), last_seq);
    let appended = engine.appended_seq(topic).wait(MayBlock::on_this_thread());
    assert_eq!(appended, Ok(last_seq));
    let seqs = engine.database().database().with_topic(topic, TopicEvents::seqs);
    assert_eq!(seqs, (1..=last_seq).collect::<Vec<_>>());
    let fresh: Vec<_> = published.iter().filter(|it| !it.duplicate).collect();
    assert_eq!(fresh.iter().map(|it| it.seq).collect::<HashSet<_>>().len(), fresh.len());
    for it in &published {
        let id = EventId::from_u128(it.id.as_u128());
        let found = engine.database().database().with_topic(topic, |events| events.find(id));
        assert_eq!(found, Some(it.seq));
    }
}

#[test]
fn the_appended_seq_is_exact_although_duplicates_are_detected_later() {
    let (engine, _) = open(&Database::new(), NetworkOptions::default());
    let topic = engine.ensure_topic(&name("a")).unwrap();
    for round in 1..=20 {
        for number in 1..=5 {
            // In each round after the first, one of these events is new and four are duplicates.
            append(&engine, &[event(topic, Some(round + number), b"x")]).unwrap();
        }
        let lookup = engine.appended_seq(topic);
        let later = append(&engine, &[event(topic, Some(1_000 + round), b"y")]).unwrap();
        let before = lookup.wait(MayBlock::on_this_thread()).unwrap();
        wait_durable(&engine, later.commit);
        let seq = later.late.unwrap().take().unwrap()[0].seq;
        assert_eq!(seq, before + 1, "round {round}");
        assert_eq!(seq, 4 + 2 * round as u64, "round {round}");
    }
}

#[test]
fn a_second_engine_deposes_the_first_and_its_commits_are_refused() {
    let database = Database::new();
    let (first, observer) = open(&database, NetworkOptions::default());
    let topic = first.ensure_topic(&name("a")).unwrap();
    let appended = append(&first, &[event(topic, None, b"1")]).unwrap();
    wait_durable(&first, appended.commit);
    let (second, _) = open(&database, NetworkOptions::default());
    assert_eq!(second.last_seq(topic), 1);
    let refused = append(&first, &[event(topic, None, b"2")]).unwrap();
    observer.wait_for("deposed simulated engine of term 2");
    assert!(matches!(refused.late.unwrap().take(), Err(StoreError::Unavailable(_))));
    assert!(matches!(append(&first, &[event(topic, None, b"3")]), Err(StoreError::Unavailable(_))));
    assert!(!first.wait_for_room(MayBlock::on_this_thread()));
    let appended = append(&second, &[event(topic, None, b"4")]).unwrap();
    wait_durable(&second, appended.commit);
    assert_eq!(read_all(&second, topic), [1, 2]);
    assert!(first.close(MayBlock::on_this_thread()).is_err());
    second.close(MayBlock::on_this_thread()).unwrap();
}

#[test]
fn nothing_is_committed_or_read_during_an_outage() {
    let (engine, observer) = open(&Database::new(), NetworkOptions::default());
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let appended = append(&engine, &[event(topic, None, b"1")]).unwrap();
    wait_durable(&engine, appended.commit);
    engine.suspend("unplugged");
    let commit = engine.database().database().commit();
    observer.wait_for("suspended unplugged");
    assert!(matches!(append(&engine, &[event(topic, None, b"2")]), Err(StoreError::Busy)));
    assert!(matches!(engine.ensure_topic(&name("b")), Err(StoreError::Busy)));
    assert_eq!(engine.ensure_topic(&name("a")), Ok(topic));
    let lookup = engine.first_seq(topic);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(engine.database().database().commit(), commit);
    engine.resume();
    observer.wait_for("room");
    let calls = observer.calls.lock().clone();
    assert!(calls.ends_with(&["resumed".to_owned(), "room".to_owned()]), "{calls:?}");
    assert_eq!(lookup.wait(MayBlock::on_this_thread()), Ok(Some(1)));
    append(&engine, &[event(topic, None, b"2")]).unwrap();
    engine.close(MayBlock::on_this_thread()).unwrap();
    assert_eq!(engine.last_seq(topic), 2);
}

#[test]
fn closing_during_an_outage_refuses_queued_appends() {
    let database = Database::new();
    let (engine, _) =
        open(&database, NetworkOptions { commit_latency_us: 5_000..=5_000, ..Default::default() });
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let appended = append(&engine, &[event(topic, None, b"1")]).unwrap();
    engine.suspend("unplugged");
    assert!(engine.close(MayBlock::on_this_thread()).is_err());
    assert!(appended.late.unwrap().take().is_err());
    assert_eq!(database.commit(), 1, "the only commit is the takeover");
}

#[test]
fn a_full_queue_refuses_appends_and_reports_when_there_is_room() {
    let options = NetworkOptions {
        queue_batches_max: 4,
        commit_latency_us: 2_000..=3_000,
        ..NetworkOptions::default()
    };
    let (engine, observer) = open(&Database::new(), options);
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let mut is_refused = false;
    for _ in 0..20 {
        is_refused |=
            append(&engine, &[event(topic, None, b"1")]).is_err_and(|error| error == StoreError::Busy);
    }
    assert!(is_refused);
    observer.wait_for("room");
    append(&engine, &[event(topic, None, b"1")]).unwrap();
}

#[test]
fn scans_of_several_topics_are_pending_at_the_same_time() {
    let options = NetworkOptions { fetch_bytes_max: 700, ..NetworkOptions::default() };
    let (engine, _) = open(&Database::new(), options);
    let topics = ["a", "b"].map(|topic| engine.ensure_topic(&name(topic)).unwrap());
    let events: Vec<_> = (0..60).map(|at| event(topics[at % 2], None, b"x")).collect();
    wait_durable(&engine, append(&engine, &events).unwrap().commit);
    let mut scanner = engine.scanner();
    let mut pending = 0;
    for topic in topics {
        let mut context = Context::from_waker(Waker::noop());
        let polled = scanner.poll_scan(topic, 1, 30, &mut context, &mut |_| panic!("the scan is pending"));
        assert!(polled.is_pending());
    }
    let mut next = [1, 1];
    while next != [31, 31] {
        for (topic, next) in topics.into_iter().zip(&mut next) {
            let from = *next;
            let (seqs, scanned, times) = scan(&mut *scanner, topic, (from, 30));
            *next = scanned.unwrap().next_seq;
            assert_eq!(seqs, (from..*next).collect::<Vec<_>>());
            pending += times;
        }
    }
    assert!(pending >= 4, "only {pending} reads were pending");
    let (seqs, scanned, pending) = scan(&mut *scanner, topics[0], (31, 99));
    assert_eq!((seqs.len(), scanned.unwrap().next_seq, pending), (0, 31, 0));
}

#[test]
fn a_scan_counts_cleaned_events_and_respects_retention() {
    struct Odd(TopicId);
    impl Liveness for Odd {
        fn first_live(&self, _topic: TopicId) -> u64 {
            0
        }
        fn is_sparse(&self, topic: TopicId) -> bool {
            topic == self.0
        }
        fn live_in(&self, _topic: TopicId, _first: u64, _last: u64) -> Option<crate::engine::LiveCount> {
            None
        }
        fn is_live(&self, _topic: TopicId, seq: u64) -> bool {
            seq % 2 == 1
        }
    }
    let database = Database::new();
    let (engine, _) = open(&database, NetworkOptions::default());
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let events: Vec<_> = (1..=10).map(|id| event(topic, Some(id), b"x")).collect();
    wait_durable(&engine, append(&engine, &events).unwrap().commit);
    let cleaned = engine.clean(&Odd(topic), true, MayBlock::on_this_thread()).unwrap();
    assert_eq!(cleaned.events, 5);
    let mut scanner = engine.scanner();
    let (seqs, scanned, _) = scan(&mut *scanner, topic, (2, 10));
    assert_eq!(seqs, [3, 5, 7, 9]);
    assert_eq!(scanned.unwrap(), crate::engine::Scanned { next_seq: 11, cleaned: 5, corrupt: 0 });
    engine.retain_from(&[(topic, 6)]).unwrap();
    let (seqs, scanned, _) = scan(&mut *scanner, topic, (1, 8));
    assert_eq!((seqs.as_slice(), scanned.unwrap().cleaned), ([7].as_slice(), 7));
    assert_eq!(engine.first_seq(topic).wait(MayBlock::on_this_thread()), Ok(Some(7)));
    // Ids that publishers chose stay known after their events were removed, even to the next engine.
    engine.close(MayBlock::on_this_thread()).unwrap();
    let (engine, _) = open(&database, NetworkOptions::default());
    assert_eq!(engine.retained_from(topic), 6);
    let late = append(&engine, &[event(topic, Some(2), b"x"), event(topic, Some(11), b"x")]).unwrap().late;
    engine.close(MayBlock::on_this_thread()).unwrap();
    let seqs: Vec<_> = late.unwrap().take().unwrap().iter().map(|it| (it.seq, it.duplicate)).collect();
    assert_eq!(seqs, [(2, true), (11, false)]);
}

#[test]
fn a_deleted_topic_is_gone_and_its_number_is_not_reused() {
    let database = Database::new();
    let (engine, _) = open(&database, NetworkOptions::default());
    let topic = engine.ensure_topic(&name("a")).unwrap();
    append(&engine, &[event(topic, None, b"x")]).unwrap();
    engine.delete_topic(topic, &name("a")).unwrap();
    assert!(matches!(append(&engine, &[event(topic, None, b"x")]), Err(StoreError::UnknownTopic(_))));
    engine.close(MayBlock::on_this_thread()).unwrap();
    let (engine, _) = open(&database, NetworkOptions::default());
    assert!(engine.topics().is_empty());
    assert_ne!(engine.ensure_topic(&name("a")).unwrap(), topic);
}

#[test]
fn commit_times_are_complete_when_the_commit_is_durable() {
    let (engine, observer) = open(&Database::new(), NetworkOptions::default());
    let topic = engine.ensure_topic(&name("a")).unwrap();
    let appended = append(&engine, &[event(topic, None, b"x")]).unwrap();
    let times = engine.commit_times(1_000);
    assert_eq!(times.closed_ms, 1_000);
    if times.durable_batch < appended.commit {
        assert!(times.complete_ms < 1_000);
    }
    wait_durable(&engine, appended.commit);
    assert_eq!(engine.commit_times(i64::MIN).complete_ms, 1_000);
    observer.wait_for(&format!("committed {}", appended.commit));
    let next = append(&engine, &[event(topic, None, b"x")]).unwrap();
    wait_durable(&engine, next.commit);
    let head = engine.head_at_or_after(topic, 2).wait(MayBlock::on_this_thread()).unwrap().unwrap();
    assert_eq!(head.commit_ms, 1_001, "a closed commit time is not assigned again");
    assert!(engine.is_own_id(head.id) && !engine.is_own_id(EventId::from_u128(7)));
}
