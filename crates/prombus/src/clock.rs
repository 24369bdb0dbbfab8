//! The clocks of the bus. Only this module reads the system's clocks, so a test can replace them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Provides two clocks: the wall clock, whose times are recorded in events, and a steady clock, which measures the leases of
/// deliveries and the leader lease of a shared store.
pub trait Clock: Send + Sync + 'static {
    /// The time of the wall clock: milliseconds since 1970.
    fn wall_ms(&self) -> i64;

    /// The time of the steady clock: milliseconds since an arbitrary start. It never goes back. It includes the time in which
    /// the process or the machine was suspended, because a leader must notice that its leader lease has expired meanwhile.
    fn steady_ms(&self) -> u64;
}

/// The system's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: SteadyTime,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: SteadyTime::now() }
    }
}

/// A time of a clock that keeps running while the machine is suspended. [`std::time::Instant`] uses `CLOCK_MONOTONIC` on Linux,
/// which stops during a suspend.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Clone, Copy, Debug)]
struct SteadyTime(Duration);

#[cfg(any(target_os = "linux", target_os = "android"))]
impl SteadyTime {
    fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(Duration::try_from(now).unwrap_or_default())
    }

    fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// On other systems: the monotonic clock of the standard library, which may stop while the machine is suspended.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
type SteadyTime = std::time::Instant;

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn steady_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// A clock for tests. It advances only when a test advances it.
#[derive(Clone, Debug)]
pub struct ManualClock {
    wall_ms: Arc<AtomicI64>,
    steady_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock whose wall clock is set to this time, and whose steady clock is at zero.
    pub fn new(wall_ms: i64) -> Self {
        Self { wall_ms: Arc::new(AtomicI64::new(wall_ms)), steady_ms: Arc::default() }
    }

    /// Advances both clocks.
    pub fn advance_ms(&self, by: u64) {
        self.wall_ms.fetch_add(by as i64, Ordering::SeqCst);
        self.steady_ms.fetch_add(by, Ordering::SeqCst);
    }

    /// Sets only the wall clock, as an operator may do.
    pub fn set_wall_ms(&self, to: i64) {
        self.wall_ms.store(to, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn steady_ms(&self) -> u64 {
        self.steady_ms.load(Ordering::SeqCst)
    }
}

/// Provides the wall clock to the log.
pub(crate) struct LogClock(pub(crate) Arc<dyn Clock>);

impl prombus_log::Clock for LogClock {
    fn now_ms(&self) -> i64 {
        self.0.wall_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_steady_clock_includes_the_time_in_which_the_machine_was_suspended() {
        // The kernel's uptime includes the time in which the machine was suspended.
        let uptime_ms = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("/proc/uptime is readable");
            let seconds: f64 = text.split(' ').next().expect("a number").parse().expect("a number");
            (seconds * 1_000.0) as u64
        };
        let before = uptime_ms();
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        if before / 1_000 < monotonic.tv_sec as u64 {
            return eprintln!("skipped: this container has an uptime of its own");
        }
        let clock = SystemClock { start: SteadyTime(Duration::ZERO) };
        let now = clock.steady_ms();
        assert!((before..=uptime_ms() + 10).contains(&now), "{now} is not the uptime, {before}");
        assert!(clock.steady_ms() >= now);
    }
}
