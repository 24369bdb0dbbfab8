//! Time. Nothing else in this crate asks the system for it, so a test can own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time, twice: the calendar's, which goes into events, and one that never goes back, by which leases run.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn wall_ms(&self) -> i64;

    /// Milliseconds since some start; never goes back.
    fn steady_ms(&self) -> u64;
}

/// The system's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn steady_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock {
    wall_ms: Arc<AtomicI64>,
    steady_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at this time.
    pub fn new(wall_ms: i64) -> Self {
        Self { wall_ms: Arc::new(AtomicI64::new(wall_ms)), steady_ms: Arc::default() }
    }

    /// Moves both clocks.
    pub fn advance_ms(&self, by: u64) {
        self.wall_ms.fetch_add(by as i64, Ordering::SeqCst);
        self.steady_ms.fetch_add(by, Ordering::SeqCst);
    }

    /// Sets the calendar's clock, as an operator may do.
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

/// Hands the calendar's time to the log.
pub(crate) struct LogClock(pub(crate) Arc<dyn Clock>);

impl prombus_log::Clock for LogClock {
    fn now_ms(&self) -> i64 {
        self.0.wall_ms()
    }
}
