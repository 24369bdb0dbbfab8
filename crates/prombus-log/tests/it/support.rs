//! Shared by the tests: a small log, a manual clock, a state that keeps its records, and an observer that keeps its
//! notices.

use parking_lot::Mutex;
use prombus_log::storage::simulated::Disk;
use prombus_log::{
    Append, AppendError, Chunk, CleanOptions, CleanReport, Clock, Committed, Event, EventId, LiveCount,
    Liveness, Log, NewEvent, Notice, Observer, OpenError, Options, Outcome, Outcomes, ReadLimit, State, Step,
    TopicId, Unavailable,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A seeded random generator.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    pub fn id(&mut self) -> EventId {
        EventId::from_u128(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}

/// A clock that changes only when it is moved.
#[derive(Default)]
pub struct HandClock(AtomicI64);

impl HandClock {
    pub fn at(now_ms: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(now_ms)))
    }

    pub fn move_by(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keeps every notice.
#[derive(Default)]
pub struct Listener {
    notices: Mutex<Vec<Notice>>,
}

impl Listener {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().clone()
    }

    /// The damage that was reported.
    pub fn faults(&self) -> Vec<prombus_log::Fault> {
        let faults = self.notices();
        faults
            .into_iter()
            .filter_map(|notice| if let Notice::Damaged(fault) = notice { Some(fault) } else { None })
            .collect()
    }
}

impl Observer for Listener {
    fn committed(&self, _committed: &Committed<'_>) {}

    fn notice(&self, notice: &Notice) {
        self.notices.lock().push(notice.clone());
    }
}

/// A state that keeps every record, in order.
#[derive(Clone, Default)]
pub struct Remembered(pub Arc<Mutex<Vec<u64>>>);

impl Remembered {
    pub fn all(&self) -> Vec<u64> {
        self.0.lock().clone()
    }
}

impl State for Remembered {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        *self.0.lock() =
            snapshot.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect();
        Ok(())
    }

    fn apply(&mut self, tag: u32, body: &[u8]) {
        // A record with an unexpected tag or body is kept as a value that no test expects.
        let number = body.try_into().map_or(u64::MAX, u64::from_le_bytes);
        self.0.lock().push(if tag == number as u32 { number } else { u64::MAX });
    }

    fn snapshot(&self, into: &mut Vec<u8>) {
        for number in &*self.0.lock() {
            into.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Options of a log that is small enough to roll, write checkpoints and clean often.
pub fn small_options() -> Options {
    Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        batch_bytes: 4 * 1024,
        tail_bytes: 8 * 1024,
        checkpoint_bytes: 8 * 1024,
        clock: HandClock::at(1_700_000_000_000),
        threads: false,
        ..Options::default()
    }
}

/// Options of a log whose segments grow.
pub fn growing_options() -> Options {
    Options {
        segment_bytes: 256 * 1024,
        first_segment_bytes: 16 * 1024,
        reserve_bytes: 12 * 1024,
        ..small_options()
    }
}

/// The lengths of the log's segments for publishers, in the order of their creation.
pub fn segment_lengths(disk: &Disk) -> Vec<usize> {
    let mut names: Vec<String> = disk.names().into_iter().filter(|name| name.ends_with(".seg")).collect();
    names.sort();
    let lengths = names.iter().map(|name| disk.contents(name).unwrap().len());
    lengths.filter(|&length| length != 12 * 1024).collect()
}

/// A log on a simulated disk, without threads.
pub struct Rig {
    pub disk: Disk,
    pub log: Log,
    pub state: Remembered,
    pub listener: Arc<Listener>,
}

impl Rig {
    pub fn open(disk: &Disk, options: Options) -> Result<Self, OpenError> {
        let listener = Listener::new();
        let state = Remembered::default();
        let options = Options { observer: Arc::<Listener>::clone(&listener), ..options };
        let log = Log::open_storage(Arc::new(disk.clone()), options, Box::new(state.clone()))?;
        Ok(Self { disk: disk.clone(), log, state, listener })
    }

    pub fn new(seed: u64) -> Self {
        Self::open(&Disk::new(seed), small_options()).unwrap()
    }

    /// Commits and does background work until there is none left.
    pub fn settle(&self) {
        while self.log.step_commit() == Step::Worked || self.log.step_housekeeping() == Step::Worked {}
    }

    /// Appends and commits.
    pub fn put(&self, append: &Append<'_>) -> Vec<Outcome> {
        let mut outcomes = Outcomes::default();
        let ticket = loop {
            match self.log.try_append(append, &mut outcomes) {
                Err(AppendError::QueueFull) => self.settle(),
                result => break result.unwrap(),
            }
        };
        self.settle();
        assert!(self.log.is_durable(ticket));
        outcomes.to_vec()
    }

    pub fn put_events(&self, events: &[NewEvent<'_>]) -> Vec<Outcome> {
        self.put(&Append { events, ..Append::default() })
    }

    /// Appends `count` events to a topic, one per batch, with different bodies.
    pub fn fill(&self, topic: &str, count: u64) -> TopicId {
        let topic = self.topic(topic);
        for _ in 0..count {
            let body = format!("{{\"n\":{},\"pad\":\"{}\"}}", self.log.last_seq(topic) + 1, "x".repeat(100));
            self.put_events(&[event(topic, body.as_bytes())]);
        }
        topic
    }

    pub fn topic(&self, name: &str) -> TopicId {
        loop {
            match self.log.ensure_topic(name) {
                Err(AppendError::QueueFull) => self.settle(),
                result => break result.unwrap(),
            }
        }
    }

    pub fn bodies(&self, topic: TopicId) -> Vec<String> {
        read_all(&self.log, topic).into_iter().map(|event| String::from_utf8(event.body).unwrap()).collect()
    }

    /// Closes the log and opens it again.
    pub fn reopen(self) -> Self {
        let disk = self.disk.clone();
        self.log.close().unwrap();
        Self::open(&disk, small_options()).unwrap()
    }
}

pub fn event(topic: TopicId, body: &[u8]) -> NewEvent<'_> {
    NewEvent { topic, id: None, ts: 0, key: None, body, tombstone: false }
}

/// An owned copy of an event that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub seq: u64,
    pub id: EventId,
    pub ts: i64,
    pub commit_ms: i64,
    pub key: Option<Vec<u8>>,
    pub body: Vec<u8>,
    pub client_id: bool,
}

impl Read {
    pub fn of(event: Event<'_>) -> Self {
        Self {
            seq: event.seq,
            id: event.id,
            ts: event.ts,
            commit_ms: event.commit_ms,
            key: event.key.map(<[u8]>::to_vec),
            body: event.body.to_vec(),
            client_id: event.client_id,
        }
    }
}

/// Reads a whole topic in small pieces.
pub fn read_all(log: &Log, topic: TopicId) -> Vec<Read> {
    read_from(log, topic, 1, ReadLimit { events: 7, bytes: 3000 })
}

pub fn read_from(log: &Log, topic: TopicId, from: u64, limit: ReadLimit) -> Vec<Read> {
    let mut all = Vec::new();
    let mut chunk = Chunk::default();
    let mut seq = from;
    loop {
        log.read(topic, seq, limit, &mut chunk).unwrap();
        all.extend(chunk.events().map(Read::of));
        if chunk.next_seq() == seq {
            return all;
        }
        assert!(chunk.next_seq() > seq, "a read went backwards");
        seq = chunk.next_seq();
    }
}

/// Compaction: decides for each event whether it lives.
pub struct Lives<F>(pub F);

impl<F: Fn(TopicId, u64) -> bool> Liveness for Lives<F> {
    fn first_live(&self, _topic: TopicId) -> u64 {
        1
    }

    fn is_sparse(&self, _topic: TopicId) -> bool {
        true
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        if last_seq - first_seq > 100_000 {
            return None;
        }
        let events = (first_seq..=last_seq).filter(|&seq| (self.0)(topic, seq)).count() as u64;
        Some(LiveCount { events, bytes: events * 190 })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        (self.0)(topic, seq)
    }
}

/// Retention: decides for each topic which seq is the first live one.
pub struct Cut<F>(pub F);

impl<F: Fn(TopicId) -> u64> Liveness for Cut<F> {
    fn first_live(&self, topic: TopicId) -> u64 {
        (self.0)(topic)
    }

    fn is_sparse(&self, _topic: TopicId) -> bool {
        false
    }

    fn live_in(&self, _topic: TopicId, _first_seq: u64, _last_seq: u64) -> Option<LiveCount> {
        panic!("the topic is not sparse")
    }

    fn is_live(&self, _topic: TopicId, _seq: u64) -> bool {
        panic!("the topic is not sparse")
    }
}

/// Cleans without rests.
pub fn clean(log: &Log, liveness: &dyn Liveness) -> Result<CleanReport, Unavailable> {
    let mut options = CleanOptions::default();
    options.duty_percent = 100;
    log.clean(liveness, &options)
}

/// Sets a flag when it is dropped, so that threads that run until the flag is set also end when an assertion fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}

/// Where the last COMMIT of a segment starts.
pub fn last_commit(disk: &Disk, segment: &str) -> u64 {
    let bytes = disk.contents(segment).unwrap();
    let is_commit = |&at: &usize| bytes[at..at + 4] == [0xf5, b'p', b'm', b'b'] && bytes[at + 8] == 4;
    (0..bytes.len() - 64).rev().find(is_commit).unwrap() as u64
}
