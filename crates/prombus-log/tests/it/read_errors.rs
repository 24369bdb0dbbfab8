//! Reads that fail with EIO, transiently or permanently, at open and in all other operations.
//!
//! The rule: unreadable bytes are neither damaged nor absent. No acknowledged event is lost, skipped, retired or reported
//! as damaged. No seq is assigned twice. Writing continues. When the disk can be read again, everything is served.

use crate::support::{HandClock, Read, Rig, clean, event, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, AppendError, Chunk, EventId, LiveCount, Liveness, Log, MissingReason, NewEvent, NewState,
    OpenError, Options, Outcomes, ReadError, ReadLimit, TopicId,
};
use std::sync::Arc;

mod accepted;
mod at_open;
mod everywhere;
mod running;

const EIO: i32 = 5;
/// Seqs of `t` below this one are cleaned in every log of these tests. Their ids are kept.
const FIRST_KEPT: u64 = 60;

/// Options with which all reads go to the disk, and ids are kept after their events were cleaned away.
fn options() -> Options {
    Options {
        tail_bytes: 0,
        index_cache_bytes: 0,
        dedupe_ms: 1 << 40,
        prepared_segments: 2,
        clock: HandClock::at(1_700_000_000_000),
        ..small_options()
    }
}

fn id(number: u64) -> EventId {
    EventId::from_u128(u128::from(number) << 70 | 0xabc)
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{}", number % 30).into_bytes()
}

fn body(topic: &str, number: u64) -> Vec<u8> {
    format!("{{\"{topic}\":{number},\"pad\":\"{}\"}}", "x".repeat(90)).into_bytes()
}

/// Which events are dead by retention or compaction.
#[derive(Clone, Copy, Default)]
struct Dead {
    /// All seqs of `t` below this one are dead.
    cut: u64,
    /// All seqs of `k` up to this one are dead, except multiples of ten.
    floor: u64,
}

struct Living<'a> {
    log: &'a Log,
    dead: Dead,
}

impl Living<'_> {
    fn is(&self, topic: TopicId, name: &str) -> bool {
        self.log.topic(name) == Some(topic)
    }
}

impl Liveness for Living<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        if self.is(topic, "t") { self.dead.cut } else { 1 }
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.is(topic, "k")
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let events = (first_seq..=last_seq).filter(|&seq| self.is_live(topic, seq)).count() as u64;
        Some(LiveCount { events, bytes: events * 190 })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        !self.is(topic, "k") || seq > self.dead.floor || seq % 10 == 0
    }
}

/// Appends one event and a state record. Id, key, body and record are derived from the number.
fn put(rig: &Rig, topic: &str, number: u64) -> Result<(), AppendError> {
    let id_of_topic = rig.topic(topic);
    let (key, body) = (key(number), body(topic, number));
    let events =
        [NewEvent { id: Some(id(number)), key: Some(&key), ts: number as i64, ..event(id_of_topic, &body) }];
    let state = number.to_le_bytes();
    let states = [NewState { tag: number as u32, body: &state }];
    let append =
        Append { events: &events, states: if topic == "t" { &states } else { &[] }, use_reserve: false };
    let mut outcomes = Outcomes::default();
    loop {
        match rig.log.try_append(&append, &mut outcomes) {
            Err(AppendError::QueueFull) => rig.settle(),
            appended => {
                let ticket = appended?;
                rig.settle();
                assert!(rig.log.is_durable(ticket), "an append was not committed");
                assert_eq!((outcomes[0].seq, outcomes[0].duplicate), (number, false));
                return Ok(());
            }
        }
    }
}

/// How the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Closed,
    Killed,
}

/// Topics of a log, and their newest seqs.
const TOPICS: [(&str, u64); 4] = [("t", 150), ("k", 120), ("gone", 30), ("rest", 90)];

/// A log with sealed, rewritten, recycled, growing and prepared segments, with kept ids, and with batches after the newest
/// checkpoint.
fn prepared(left: Left) -> Disk {
    let rig = Rig::open(&Disk::new(1), options()).unwrap();
    for number in 1..FIRST_KEPT - 10 {
        put(&rig, "t", number).unwrap();
    }
    for number in 1..=110 {
        put(&rig, "k", number).unwrap();
        if number >= FIRST_KEPT - 10 {
            put(&rig, "t", number).unwrap();
        }
    }
    for number in 1..=60 {
        put(&rig, "rest", number).unwrap();
    }
    let report =
        clean(&rig.log, &Living { log: &rig.log, dead: Dead { cut: FIRST_KEPT, floor: 0 } }).unwrap();
    assert!(report.segments_retired > 0 && report.segments_rewritten > 0, "{report:?}");
    rig.settle();
    for number in 1..=30 {
        put(&rig, "gone", number).unwrap();
        put(&rig, "rest", 60 + number).unwrap();
    }
    for number in 111..=120 {
        put(&rig, "k", number).unwrap();
    }
    for number in 111..=150 {
        put(&rig, "t", number).unwrap();
    }
    match left {
        Left::Closed => {
            let disk = rig.disk.clone();
            rig.log.close().unwrap();
            disk.fork()
        }
        Left::Killed => kill(rig),
    }
}

/// kill -9: the page cache stays as it is.
fn kill(rig: Rig) -> Disk {
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    survivor
}

fn is_eio(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// Whether an open was refused because of an unreadable file, with the file's name in the error.
fn is_unreadable(error: &OpenError) -> bool {
    matches!(error, OpenError::Unreadable { file, .. } if !file.is_empty())
}

/// Retries until the disk can be read.
fn patiently<T, E>(
    what: &str,
    mut attempt: impl FnMut() -> Result<T, E>,
    is_allowed: impl Fn(&E) -> bool,
) -> T
where
    E: std::fmt::Display,
{
    for _ in 0..5_000 {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(is_allowed(&error), "{what}: {error}"),
        }
    }
    panic!("{what}: the error persists");
}

fn is_read_error(error: &ReadError) -> bool {
    match error {
        ReadError::Unreadable { source, file, .. } | ReadError::Io { source, file, .. } => {
            is_eio(source) && !file.is_empty()
        }
        _ => false,
    }
}

/// Opens a log, and retries while parts of it cannot be read.
fn open_patiently(disk: &Disk) -> Rig {
    patiently("open", || Rig::open(disk, options()), is_unreadable)
}

/// Reads a topic to its end, and retries failed reads. No event may be reported as damaged. Also returns the seqs that are
/// reported as cleaned.
fn read_patiently(log: &Log, topic: TopicId) -> (Vec<Read>, Vec<u64>) {
    let (mut events, mut cleaned) = (Vec::new(), Vec::new());
    let mut chunk = Chunk::default();
    let mut seq = 1;
    loop {
        let limit = ReadLimit { events: 20, bytes: 3000 };
        patiently(
            "read",
            || log.read(topic, seq, limit, &mut chunk),
            |error| {
                if let ReadError::Unreadable { first_seq, last_seq, .. } = error {
                    assert!(*first_seq == seq && *last_seq >= seq, "{error}, read from {seq}");
                }
                is_read_error(error)
            },
        );
        for missing in chunk.missing() {
            assert_eq!(missing.reason, MissingReason::Cleaned, "{missing:?}");
            cleaned.extend(missing.first_seq..=missing.last_seq);
        }
        events.extend(chunk.events().map(Read::of));
        if chunk.next_seq() == seq {
            return (events, cleaned);
        }
        seq = chunk.next_seq();
    }
}

/// Checks that the log contains every live event, even if reads fail meanwhile, and that no fault was found.
fn check(rig: &Rig, dead: Dead, extra: u64) {
    for (name, last) in TOPICS {
        let Some(topic) = rig.log.topic(name) else {
            assert_eq!(name, "gone", "a topic is lost");
            continue;
        };
        let last = if name == "t" { last + extra } else { last };
        assert_eq!(rig.log.last_seq(topic), last, "{name}: the newest seq");
        let (events, cleaned) = read_patiently(&rig.log, topic);
        let living = Living { log: &rig.log, dead };
        let is_dead = |seq| seq < living.first_live(topic) || !living.is_live(topic, seq);
        for seq in cleaned {
            assert!(is_dead(seq), "{name}: seq {seq} was skipped as cleaned");
        }
        let mut events = events.iter().peekable();
        for seq in 1..=last {
            match events.next_if(|event| event.seq == seq) {
                Some(event) => assert_eq!(event.body, body(name, seq), "{name}: seq {seq}"),
                None => assert!(is_dead(seq), "{name}: seq {seq} is lost"),
            }
        }
        assert!(events.next().is_none(), "{name}: more events than were published");
    }
    check_health(rig);
}

/// Like [`check`], for a log that was just opened. Also checks its state records.
fn check_opened(rig: &Rig, dead: Dead, extra: u64) {
    let states = rig.state.all();
    assert!(states.iter().copied().eq(1..=150 + extra), "state records up to {:?}", states.last());
    check(rig, dead, extra);
}

/// No read error stops writing or counts as damage.
fn check_health(rig: &Rig) {
    assert_eq!(rig.log.unavailable(), None);
    assert_eq!(rig.listener.faults(), []);
    assert_eq!(rig.log.stats().faults, 0);
}

/// Checks that publishing an event again is a duplicate, or is refused while the id cannot be looked up. It must never
/// count as new.
fn check_duplicate(rig: &Rig, number: u64) {
    let topic = rig.log.topic("t").unwrap();
    let events = [NewEvent { id: Some(id(number)), ..event(topic, b"again") }];
    let append = Append { events: &events, ..Append::default() };
    let mut outcomes = Outcomes::default();
    patiently(
        "publish again",
        || rig.log.try_append(&append, &mut outcomes),
        |error| {
            if matches!(error, AppendError::QueueFull) {
                rig.settle();
            }
            matches!(error, AppendError::Lookup(_) | AppendError::QueueFull)
        },
    );
    assert_eq!((outcomes[0].duplicate, outcomes[0].seq), (true, number));
}

/// Files of one kind, in order.
fn files(disk: &Disk, ending: &str) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.ends_with(ending)).collect()
}

fn length(disk: &Disk, name: &str) -> u64 {
    disk.contents(name).unwrap().len() as u64
}

fn verify(disk: &Disk) -> prombus_log::VerifyReport {
    prombus_log::verify_storage(Arc::new(disk.fork()), |_| {}).unwrap()
}
