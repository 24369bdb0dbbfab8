//! The clock that measures the leases of events. It stands still while the whole process is stopped.
//!
//! After a SIGSTOP, a breakpoint in a debugger or a lack of CPU time, acks that arrived meanwhile are still unread in their
//! sockets. If the stopped time counted, all leases would expire before the first of these acks is read, and their events would
//! be redelivered. So the stopped time does not count: each lease has as much time left as when the process was stopped.
//!
//! A stop shows as a gap between two readings of the clock. The timer thread reads the clock several times a second while any
//! timer is set. The first reading after a gap subtracts the gap, before any lease is checked. Leases still expire, because the
//! time in which the process runs counts.

use crate::clock::Clock;
use crate::delivery::Millis;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The minimum gap between two readings that counts as a stop.
const STOP_MS: Millis = 1_000;
/// How often the timer thread reads the clock.
pub(crate) const READ_EVERY_MS: Millis = 250;
/// The value of `last_reading_ms` while the clock is not read regularly. A gap then does not mean that the process was stopped.
const UNWATCHED: u64 = u64::MAX;

/// A clock that subtracts the time in which the process was stopped; see the module.
pub(crate) struct StopClock {
    inner: Arc<dyn Clock>,
    /// The last reading of the inner clock.
    last_reading_ms: AtomicU64,
    /// The total time in which the process was stopped.
    stopped_ms: AtomicU64,
    /// The newest time that was returned. A thread that was stopped between its reading and its return must not return an older
    /// time.
    returned_ms: AtomicU64,
    /// Held while a gap is subtracted, so that two threads do not subtract the same gap.
    subtracting: Mutex<()>,
}

impl StopClock {
    pub(crate) fn new(inner: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            last_reading_ms: AtomicU64::new(UNWATCHED),
            stopped_ms: AtomicU64::new(0),
            returned_ms: AtomicU64::new(0),
            subtracting: Mutex::new(()),
        }
    }

    /// Starts regular readings: the timer thread reads the clock every [`READ_EVERY_MS`] from now on.
    pub(crate) fn watch(&self) {
        let now = self.inner.steady_ms();
        // If the clock is watched already, the next reading finds any gap.
        let _ = self.last_reading_ms.compare_exchange(UNWATCHED, now, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ends regular readings.
    pub(crate) fn unwatch(&self) {
        self.last_reading_ms.store(UNWATCHED, Ordering::Release);
    }

    #[cold]
    fn subtract_gap(&self, now: u64) {
        let _alone = self.subtracting.lock();
        let last_reading = self.last_reading_ms.load(Ordering::Acquire);
        if last_reading != UNWATCHED && now.saturating_sub(last_reading) >= STOP_MS {
            // `stopped_ms` is changed before the reading is stored: a thread that sees the new reading must also see that the gap
            // is subtracted.
            self.stopped_ms.fetch_add(now - last_reading, Ordering::AcqRel);
            self.last_reading_ms.store(now, Ordering::Release);
            tracing::warn!(
                "the process did not run for {} ms; leases are extended by that time",
                now - last_reading
            );
        }
    }
}

impl Clock for StopClock {
    fn wall_ms(&self) -> i64 {
        self.inner.wall_ms()
    }

    fn steady_ms(&self) -> u64 {
        let now = self.inner.steady_ms();
        let last_reading = self.last_reading_ms.load(Ordering::Acquire);
        if last_reading != UNWATCHED && now > last_reading {
            if now - last_reading >= STOP_MS {
                self.subtract_gap(now);
            } else {
                // If this fails, another thread has stored a reading meanwhile, which is sufficient.
                let _ = self.last_reading_ms.compare_exchange(
                    last_reading,
                    now,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
        let running = now.saturating_sub(self.stopped_ms.load(Ordering::Acquire));
        let returned = self.returned_ms.load(Ordering::Acquire);
        if running > returned {
            self.returned_ms.fetch_max(running, Ordering::AcqRel);
        }
        running.max(returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn the_time_in_which_the_process_was_stopped_does_not_count() {
        let manual = ManualClock::new(0);
        let clock = StopClock::new(Arc::new(manual.clone()));
        clock.watch();
        for _ in 0..10 {
            manual.advance_ms(READ_EVERY_MS);
            clock.steady_ms();
        }
        assert_eq!(clock.steady_ms(), 2_500);
        manual.advance_ms(40_000);
        assert_eq!(clock.steady_ms(), 2_500, "the process was stopped");
        assert_eq!(clock.wall_ms(), 42_500, "the wall clock continues");
        manual.advance_ms(STOP_MS - 1);
        assert_eq!(clock.steady_ms(), 2_500 + STOP_MS - 1, "the process runs again");
    }

    #[test]
    fn a_gap_counts_while_the_clock_is_not_watched() {
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
