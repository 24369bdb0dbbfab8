//! The gate of a bus on a shared store: whether this process may lease events now.
//!
//! It closes by itself when its deadline has passed; nobody has to run for that, so a process that was stopped finds it closed
//! when it continues. Its clock counts the time in which the process was stopped, unlike the clock of leases.

use crate::clock::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Called when members that found the gate closed may try again.
type OnOpen = Arc<dyn Fn() + Send + Sync>;

/// See the module. It belongs to one bus and to one term.
pub struct LeasingGate {
    clock: Arc<dyn Clock>,
    /// It is closed from this time on, by the steady clock.
    open_until_ms: AtomicU64,
    /// Somebody found it closed and waits.
    is_awaited: AtomicBool,
    on_open: Mutex<Option<OnOpen>>,
}

impl LeasingGate {
    /// A closed gate.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            open_until_ms: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            on_open: Mutex::new(None),
        }
    }

    /// Whether events may be leased now.
    pub fn is_open(&self) -> bool {
        self.clock.steady_ms() < self.open_until_ms.load(Ordering::SeqCst)
    }

    /// Opens the gate until this time of the steady clock. Members that wait are woken.
    pub fn open_until(&self, deadline_ms: u64) {
        self.open_until_ms.store(deadline_ms, Ordering::SeqCst);
        // After the store: a member that says it waits looks at the deadline once more.
        if self.is_open() && self.is_awaited.swap(false, Ordering::SeqCst) {
            // It calls wakers, and those run when no lock is held.
            let on_open = self.on_open.lock().clone();
            on_open.into_iter().for_each(|on_open| on_open());
        }
    }

    /// Closes it.
    pub fn close(&self) {
        self.open_until_ms.store(0, Ordering::SeqCst);
    }

    /// Says that somebody waits for the gate to open, and has put itself where `on_open` finds it. Returns whether the gate is still
    /// closed: otherwise it may have been opened before.
    pub(crate) fn wait(&self) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        !self.is_open()
    }

    /// Sets what is called when those who wait may try again.
    pub(crate) fn on_open(&self, on_open: impl Fn() + Send + Sync + 'static) {
        *self.on_open.lock() = Some(Arc::new(on_open));
    }
}

impl std::fmt::Debug for LeasingGate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LeasingGate(open until {})", self.open_until_ms.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn the_gate_closes_when_its_deadline_has_passed_and_wakes_those_who_wait_when_it_opens() {
        let clock = ManualClock::new(0);
        let gate = LeasingGate::new(Arc::new(clock.clone()));
        let woken = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&woken);
        gate.on_open(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        assert!(!gate.is_open());
        gate.open_until(5_000);
        assert!(gate.is_open());
        assert_eq!(woken.load(Ordering::SeqCst), 0, "nobody waits");
        clock.advance_ms(5_000);
        assert!(!gate.is_open());
        assert!(gate.wait());
        gate.open_until(5_000);
        assert_eq!(woken.load(Ordering::SeqCst), 0, "it is still closed");
        gate.open_until(7_000);
        gate.open_until(9_000);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        gate.close();
        assert!(!gate.is_open());
    }

    #[test]
    fn one_who_waits_when_the_gate_has_opened_is_told_so() {
        let gate = LeasingGate::new(Arc::new(ManualClock::new(0)));
        gate.open_until(5_000);
        assert!(!gate.wait());
    }
}
