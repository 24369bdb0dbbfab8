//! A clock for leases that stands still while the whole process does.
//!
//! After a SIGSTOP, a debugger's break or a machine without a free core, acks that arrived meanwhile lie unread in their
//! sockets. If the stopped time counted, all leases would be over before the first of those acks is read, and their events would
//! be delivered again. So it does not count: each lease has as much time left as when the process was stopped.
//!
//! A stop shows as a gap between two looks at the clock. The timer thread looks several times a second while anything is timed,
//! and the first look after a gap subtracts it, before any lease is judged. A lease still ends: time counts whenever the process
//! runs.

use crate::clock::Clock;
use crate::delivery::Millis;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A gap between two looks that is at least this long is a stop.
const STOP_MS: Millis = 1_000;
/// The timer thread looks this often.
pub(crate) const LOOK_EVERY_MS: Millis = 250;
/// No regular looks are made, so a gap means nothing.
const UNWATCHED: u64 = u64::MAX;

/// See the module.
pub(crate) struct StopClock {
    inner: Arc<dyn Clock>,
    /// The last look, by the inner clock.
    seen_ms: AtomicU64,
    /// How long the process was stopped, in all.
    stopped_ms: AtomicU64,
    /// The newest time that was told. A thread that was stopped between its look and its answer must not tell an older one.
    told_ms: AtomicU64,
    taking_out: Mutex<()>,
}

impl StopClock {
    pub(crate) fn new(inner: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            seen_ms: AtomicU64::new(UNWATCHED),
            stopped_ms: AtomicU64::new(0),
            told_ms: AtomicU64::new(0),
            taking_out: Mutex::new(()),
        }
    }

    /// The timer thread looks every [`LOOK_EVERY_MS`] from now on.
    pub(crate) fn watch(&self) {
        let now = self.inner.steady_ms();
        // A gap that shows only now is found by the next look.
        let _ = self.seen_ms.compare_exchange(UNWATCHED, now, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The timer thread stops looking.
    pub(crate) fn unwatch(&self) {
        self.seen_ms.store(UNWATCHED, Ordering::Release);
    }

    #[cold]
    fn take_out_gap(&self, now: u64) {
        let _alone = self.taking_out.lock();
        let seen = self.seen_ms.load(Ordering::Acquire);
        if seen != UNWATCHED && now.saturating_sub(seen) >= STOP_MS {
            // Before the look is stored: a thread that sees the new look must see the gap removed.
            self.stopped_ms.fetch_add(now - seen, Ordering::AcqRel);
            self.seen_ms.store(now, Ordering::Release);
            tracing::warn!("the process did not run for {} ms; leases are longer by that time", now - seen);
        }
    }
}

impl Clock for StopClock {
    fn wall_ms(&self) -> i64 {
        self.inner.wall_ms()
    }

    fn steady_ms(&self) -> u64 {
        let now = self.inner.steady_ms();
        let seen = self.seen_ms.load(Ordering::Acquire);
        if seen != UNWATCHED && now > seen {
            if now - seen >= STOP_MS {
                self.take_out_gap(now);
            } else {
                // If another thread has looked since, that look will do.
                let _ = self.seen_ms.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        let running = now.saturating_sub(self.stopped_ms.load(Ordering::Acquire));
        let told = self.told_ms.load(Ordering::Acquire);
        if running > told {
            self.told_ms.fetch_max(running, Ordering::AcqRel);
        }
        running.max(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let manual = ManualClock::new(0);
        let clock = StopClock::new(Arc::new(manual.clone()));
        clock.watch();
        for _ in 0..10 {
            manual.advance_ms(LOOK_EVERY_MS);
            clock.steady_ms();
        }
        assert_eq!(clock.steady_ms(), 2_500);
        manual.advance_ms(40_000);
        assert_eq!(clock.steady_ms(), 2_500, "it was stopped");
        assert_eq!(clock.wall_ms(), 42_500, "wall time continues");
        manual.advance_ms(STOP_MS - 1);
        assert_eq!(clock.steady_ms(), 2_500 + STOP_MS - 1, "and then it ran");
    }

    #[test]
    fn a_gap_counts_while_nobody_watches() {
        let manual = ManualClock::new(0);
        let clock = StopClock::new(Arc::new(manual.clone()));
        manual.advance_ms(5_000);
        assert_eq!(clock.steady_ms(), 5_000);
        clock.watch();
        manual.advance_ms(100);
        assert_eq!(clock.steady_ms(), 5_100);
        clock.unwatch();
        manual.advance_ms(60_000);
        assert_eq!(clock.steady_ms(), 65_100);
    }
}
