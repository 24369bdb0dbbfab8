//! The leasing gate of a bus on a store that several processes share: decides whether this process may lease events to
//! members. Only the process that holds the leader lease of the store may do so. A *term* is the time in which one process
//! holds the leader lease.
//!
//! The gate is closed when its deadline has passed. No task has to close it, so a process that was stopped for long finds the
//! gate closed when it continues. The clock of the gate includes the time in which the process was stopped. The clock that
//! measures the leases of events does not.

use crate::clock::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A callback that wakes the members that found the gate closed.
type OnOpen = Arc<dyn Fn() + Send + Sync>;

/// Decides whether events may be leased; see the module. Each bus has its own gate, and each term has its own bus.
pub struct LeasingGate {
    clock: Arc<dyn Clock>,
    /// The gate is closed from this time of the steady clock.
    open_until_ms: AtomicU64,
    /// Whether a member waits for the gate to open.
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

    /// Opens the gate until this time of the steady clock, and wakes waiting members.
    pub fn open_until(&self, deadline_ms: u64) {
        self.open_until_ms.store(deadline_ms, Ordering::SeqCst);
        // `is_awaited` is read after the deadline was stored, and `wait` sets it before it checks the deadline. So either this
        // call wakes the member, or the member finds the gate open.
        if self.is_open() && self.is_awaited.swap(false, Ordering::SeqCst) {
            // The callback calls wakers, so it is called without the lock.
            let on_open = self.on_open.lock().clone();
            on_open.into_iter().for_each(|on_open| on_open());
        }
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.open_until_ms.store(0, Ordering::SeqCst);
    }

    /// Announces that a member waits for the gate to open. The member must already be registered where `on_open` finds it.
    /// Returns whether the gate is still closed; if not, it may have opened before the call, and the member must try again.
    pub(crate) fn wait(&self) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        !self.is_open()
    }

    /// Sets the callback that wakes waiting members when the gate opens.
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
    fn the_gate_closes_at_its_deadline_and_wakes_waiting_members_when_it_opens() {
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
        assert_eq!(woken.load(Ordering::SeqCst), 0, "no member waits");
        clock.advance_ms(5_000);
        assert!(!gate.is_open());
        assert!(gate.wait());
        gate.open_until(5_000);
        assert_eq!(woken.load(Ordering::SeqCst), 0, "the gate is still closed");
        gate.open_until(7_000);
        gate.open_until(9_000);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        gate.close();
        assert!(!gate.is_open());
    }

    #[test]
    fn waiting_at_an_open_gate_returns_false() {
        let gate = LeasingGate::new(Arc::new(ManualClock::new(0)));
        gate.open_until(5_000);
        assert!(!gate.wait());
    }
}
