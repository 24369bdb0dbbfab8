//! Random histories of the whole library on the simulated disk, with active groups and power cuts at any step, also while
//! the bus opens and closes.
//!
//! Checks: no confirmed event is lost or changed; no event that a member has seen disappears; durably settled events stay
//! settled; attempts never fall; a dead letter is written exactly once, and only for an event that the group has settled; at
//! the end every event was acked, dead-lettered, or is still delivered. Reads fail at random, for a while or until the disk
//! is repaired: callers get an error or wait, and nothing counts as damaged. `PROMBUS_SEED` is the first seed and
//! `PROMBUS_HISTORIES` the number of histories.

mod checks;
mod steps;

use crate::support::{Random, setting};
use prombus::delivery::Position;
use prombus::engine::{LogEngine, LogEngineOptions};
use prombus::{Clock, DurableTicket, Limits, LocalBackend, ManualClock, Membership, Publishing, Uuid};
use prombus_log::Options;
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

const TOPICS: [&str; 3] = ["orders", "heartbeat.received", "t"];
/// Subscription, group, attempts before an event is given up.
const GROUPS: [(&str, &str, u32); 3] =
    [("orders", "billing", 5), ("**", "audit", 1_000), ("orders", "fragile", 2)];

type Check = Result<(), String>;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(message()) }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// An event for a group.
type Place = (usize, String, u64);

/// A member: its group, its membership, and its limit of attempts.
type ActiveMember = (usize, Arc<dyn Membership>, u32);

struct Held {
    member: usize,
    group: usize,
    position: Position,
    topic: String,
}

/// The state of one life of the process, from open to close or crash.
struct Life {
    store: Arc<LogEngine>,
    backend: LocalBackend,
    publishing: Vec<(Publishing, Vec<Expected>)>,
    tickets: Vec<(DurableTicket, Place)>,
    members: Vec<Option<ActiveMember>>,
    held: Vec<Held>,
    /// Events acked in this life, since the last seek.
    acked: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Expected {
    topic: String,
    payload: String,
    id: Option<Uuid>,
}

struct History {
    random: Random,
    disk: Disk,
    clock: ManualClock,
    options: Options,
    next_payload: u64,
    /// Events that were confirmed or delivered: topic and seq to id and payload.
    known: BTreeMap<(String, u64), (Uuid, String)>,
    /// Groups whose creation was confirmed.
    made: HashSet<usize>,
    /// Events settled durably, since the last seek.
    settled: HashSet<Place>,
    /// Events acked at some time, durably or not.
    acked: HashSet<Place>,
    /// The highest attempt that was delivered, since the last seek.
    attempts: HashMap<Place, u32>,
    /// The life in which an event was last delivered, since the last seek.
    delivered_in: HashMap<Place, u64>,
    lives: u64,
    /// Groups that were moved back to the start: an older dead letter says nothing about their current position.
    sought: HashSet<usize>,
    letters: u64,
}

impl History {
    fn new(seed: u64, lie: Option<SyncPoint>) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(seed);
        disk.lie_about(lie);
        let options = Options {
            segment_bytes: 1024 * random.between(24, 64),
            reserve_bytes: 8 * 1024,
            prepared_segments: random.between(1, 2) as usize,
            batch_bytes: random.between(3, 8) as usize * 1024,
            tail_bytes: random.below(3) as usize * 4096,
            checkpoint_bytes: 1024 * random.between(1, 12),
            index_cache_bytes: random.below(2) as usize * 4096,
            threads: false,
            ..Options::default()
        };
        Self {
            random,
            disk,
            clock: ManualClock::new(1_700_000_000_000),
            options,
            next_payload: 1,
            known: BTreeMap::new(),
            made: HashSet::new(),
            settled: HashSet::new(),
            acked: HashSet::new(),
            attempts: HashMap::new(),
            delivered_in: HashMap::new(),
            lives: 0,
            sought: HashSet::new(),
            letters: 0,
        }
    }

    fn run(&mut self) -> Check {
        for _ in 0..self.random.between(2, 4) {
            if !self.random.one_in(6) {
                let reach = [20, 60, 150, 400][self.random.below(4) as usize];
                self.disk.cut_after(self.random.between(1, reach));
            }
            self.lives += 1;
            self.life()?;
        }
        self.disk.cut_after(u64::MAX);
        self.disk.make_readable();
        let mut life = self.open()?.ok_or("the bus did not open with the power on")?;
        self.check_events(&life)?;
        self.drain(&mut life)
    }

    /// `None` if the power went off.
    fn open(&mut self) -> Result<Option<Life>, String> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let options = LogEngineOptions { log: self.options.clone() };
        let store = match LogEngine::open_storage(Arc::new(self.disk.clone()), options, Arc::clone(&clock)) {
            Ok(store) => Arc::new(store),
            Err(_) if self.disk.is_off() => return Ok(None),
            Err(prombus::OpenError::Log(prombus_log::OpenError::Unreadable { .. }))
                if self.has_read_errors() =>
            {
                // The open failed and changed nothing: with a readable disk all data must be there.
                self.disk.make_readable();
                return self.open();
            }
            Err(error) => return Err(format!("open: {error}")),
        };
        let shared = Arc::clone(&store) as Arc<dyn prombus::engine::Engine>;
        let backend = LocalBackend::open_without_timer(shared, clock, Limits::default())
            .map_err(|error| format!("open: {error}"))?;
        let (publishing, tickets, members, held, acked) = Default::default();
        Ok(Some(Life { store, backend, publishing, tickets, members, held, acked }))
    }

    fn life(&mut self) -> Check {
        let Some(mut life) = self.open()? else {
            self.disk.power_cut();
            return Ok(());
        };
        if !self.disk.is_off() {
            self.disk.make_readable();
            self.check_events(&life)?;
            self.check_letters(&life)?;
        }
        for _ in 0..self.random.between(20, 160) {
            if self.disk.is_off() {
                break;
            }
            self.step(&mut life)?;
            self.take_answers(&mut life)?;
        }
        match self.random.below(8) {
            0 | 1 if !self.disk.is_off() => {
                // A clean close: members leave, and all acks become durable if the power stays on.
                let closed = life.backend.close_blocking();
                self.take_answers(&mut life)?;
                if closed.is_ok() {
                    self.settled.extend(life.acked.drain(..));
                }
                drop(life);
                if self.random.one_in(2) || self.disk.is_off() {
                    self.disk.power_cut();
                }
            }
            2 | 3 => {
                // kill -9: the page cache stays.
                let survivor = self.disk.fork();
                survivor.reseed(self.random.next());
                self.disk.cut_after(0);
                drop(life);
                self.disk = survivor;
            }
            _ => {
                self.disk.cut_after(0);
                drop(life);
                self.disk.power_cut();
            }
        }
        Ok(())
    }

    /// Polls a future, and runs the log's work between polls. Returns `None` if the future does not resolve, because the
    /// power is off.
    fn drive<F: Future>(
        &mut self,
        backend: &LocalBackend,
        future: F,
        store: &LogEngine,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..200 {
            if let Poll::Ready(output) = poll_once(future.as_mut()) {
                return Some(output);
            }
            store.log().step_commit();
            store.log().step_housekeeping();
            backend.tick();
        }
        None
    }

    /// Whether a read has failed: then lookups and opens may fail.
    fn has_read_errors(&self) -> bool {
        self.disk.failed_reads() > 0
    }

    /// Makes some of the next reads fail, or all reads of a range until the disk is repaired.
    fn break_reads(&mut self) {
        match self.random.below(4) {
            0 | 1 => self.disk.fail_reads(self.random.below(6), self.random.between(1, 12)),
            2 => {
                let names: Vec<String> = self
                    .disk
                    .names()
                    .into_iter()
                    .filter(|name| name.ends_with("g") || name.ends_with("x"))
                    .collect();
                if !names.is_empty() {
                    let name = &names[self.random.below(names.len() as u64) as usize];
                    let start = self.random.below(30_000);
                    self.disk.make_unreadable(name, start..start + self.random.between(1, 3_000));
                }
            }
            _ => self.disk.make_readable(),
        }
    }
}

/// The payload of a stored body.
fn payload_of(body: &str) -> String {
    prombus::Body::new(body.as_bytes()).payload().unwrap_or_default().to_owned()
}

fn run_histories(first_seed: u64, histories: u64) -> u64 {
    let next = AtomicU64::new(first_seed);
    let letters = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first_seed + histories {
                        return;
                    }
                    let mut history = History::new(seed, None);
                    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run()));
                    match ran {
                        Ok(Ok(())) => letters.fetch_add(history.letters, Ordering::Relaxed),
                        Ok(Err(why)) => panic!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: {why}"),
                        Err(_) => panic!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: panicked, see above"),
                    };
                }
            });
        }
    });
    letters.into_inner()
}

#[test]
fn a_power_cut_at_any_step_loses_no_event_and_undoes_no_settle() {
    let (seed, histories) = (setting("PROMBUS_SEED", 1), setting("PROMBUS_HISTORIES", 2_500));
    println!("PROMBUS_SEED={seed} PROMBUS_HISTORIES={histories}");
    let letters = run_histories(seed, histories);
    println!("{letters} dead letters checked");
    assert!(histories < 100 || letters > 0, "no history had a dead letter");
}

/// Checks the suite itself: it must fail on a disk that skips the sync that makes events durable.
#[test]
fn the_suite_fails_when_the_log_is_not_synced() {
    let found = (1..=300).find(|&seed| {
        let run = || History::new(seed, Some(SyncPoint::LogData)).run().is_err();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        ran.unwrap_or(true) && History::new(seed, None).run().is_ok()
    });
    assert!(found.is_some(), "300 histories on a disk that does not sync, and no failure was found");
}
