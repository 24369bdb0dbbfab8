//! State shared by all tasks: the clock, the phase of the run, violations and counters.

use crate::group_book::GroupBook;
use crate::ledger::Ledger;
use crate::plan::GROUPS;
use crate::timeline::Timeline;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many violations of one kind are printed and kept; further ones are only counted.
const KEPT_PER_KIND: usize = 25;

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) address: SocketAddr,
    began: Instant,
    /// The life that a new connection belongs to.
    life: AtomicUsize,
    timeline: Mutex<Timeline>,
    violations: Mutex<BTreeMap<&'static str, Vec<String>>>,
    figures: Mutex<BTreeMap<String, u64>>,
    ledger: Mutex<Ledger>,
    groups: Vec<Mutex<GroupBook>>,
    is_publishing_over: AtomicBool,
    is_draining: AtomicBool,
    is_over: AtomicBool,
}

/// Locks a mutex even if a task panicked while holding it: a panic must not hide the violations found by other tasks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(crate) fn new(seed: u64, address: SocketAddr) -> Self {
        let mut timeline = Timeline::default();
        timeline.begin_life();
        Self {
            seed,
            address,
            began: Instant::now(),
            life: AtomicUsize::new(0),
            timeline: Mutex::new(timeline),
            violations: Mutex::default(),
            figures: Mutex::default(),
            ledger: Mutex::new(Ledger::new(seed)),
            groups: GROUPS.iter().map(|plan| Mutex::new(GroupBook::new(plan))).collect(),
            is_publishing_over: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Milliseconds since the start of the run.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    pub(crate) fn life(&self) -> usize {
        self.life.load(Ordering::SeqCst)
    }

    /// Called when the old process is gone and before the next one starts.
    pub(crate) fn begin_next_life(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
        self.timeline().begin_life();
    }

    pub(crate) fn timeline(&self) -> MutexGuard<'_, Timeline> {
        lock(&self.timeline)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(crate) fn group(&self, number: usize) -> MutexGuard<'_, GroupBook> {
        lock(&self.groups[number])
    }

    /// Publishers wait for missing answers, then stop.
    pub(crate) fn end_publishing(&self) {
        self.is_publishing_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_publishing_over(&self) -> bool {
        self.is_publishing_over.load(Ordering::SeqCst)
    }

    /// Members ack everything from now on.
    pub(crate) fn begin_drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Members leave.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self, figure: &str) {
        self.add(figure, 1);
    }

    pub(crate) fn add(&self, figure: &str, count: u64) {
        let mut figures = lock(&self.figures);
        match figures.get_mut(figure) {
            Some(sum) => *sum += count,
            None => {
                figures.insert(figure.to_owned(), count);
            }
        }
    }

    pub(crate) fn figure(&self, figure: &str) -> u64 {
        lock(&self.figures).get(figure).copied().unwrap_or_default()
    }

    pub(crate) fn figures(&self) -> BTreeMap<String, u64> {
        lock(&self.figures).clone()
    }

    /// The last faults; empty if the caller of `violation` holds the lock of the timeline.
    fn recent(&self) -> String {
        self.timeline.try_lock().map_or_else(|_| String::new(), |timeline| timeline.recent())
    }

    /// Prints a broken guarantee at once; the report at the end lists it again.
    pub(crate) fn violation(&self, kind: &'static str, what: &str) {
        let recent = self.recent();
        let line = format!("{kind} at {:.3} s: {what} [{recent}]", self.now_ms() as f64 / 1000.0);
        self.count(&format!("violations: {kind}"));
        let mut violations = lock(&self.violations);
        let lines = violations.entry(kind).or_default();
        if lines.len() < KEPT_PER_KIND {
            println!("VIOLATION {line}");
            lines.push(line);
        }
    }

    pub(crate) fn violations(&self) -> BTreeMap<&'static str, Vec<String>> {
        lock(&self.violations).clone()
    }
}
