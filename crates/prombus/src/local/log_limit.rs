//! Limits how often a repeated event is logged, and counts those that were not logged.

use crate::delivery::Millis;
use parking_lot::Mutex;

/// Allows a number of lines in each window of time.
pub(super) struct LogLimit {
    lines_max: u32,
    window_ms: Millis,
    state: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    /// When the window ends.
    ends_at: Millis,
    /// The lines that were logged in it.
    logged: u32,
    /// The lines that were left out since the last line.
    left_out: u64,
}

/// A line that may be logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    /// The number of lines that were left out since the last line.
    pub(super) left_out: u64,
    /// Whether further lines of this window are left out.
    pub(super) is_last: bool,
}

impl LogLimit {
    pub(super) fn new(lines_max: u32, window_ms: Millis) -> Self {
        Self { lines_max, window_ms, state: Mutex::default() }
    }

    /// Counts a line. Returns `None` if it must be left out.
    pub(super) fn take(&self, now: Millis) -> Option<Allowed> {
        let mut window = self.state.lock();
        if now >= window.ends_at {
            window.ends_at = now + self.window_ms;
            window.logged = 0;
        }
        if window.logged >= self.lines_max {
            window.left_out += 1;
            return None;
        }
        window.logged += 1;
        let is_last = window.logged == self.lines_max;
        Some(Allowed { left_out: std::mem::take(&mut window.left_out), is_last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_limit_are_counted_and_reported_with_the_next_line() {
        let limit = LogLimit::new(2, 100);
        assert_eq!(limit.take(5), Some(Allowed { left_out: 0, is_last: false }));
        assert_eq!(limit.take(6), Some(Allowed { left_out: 0, is_last: true }));
        assert_eq!((limit.take(7), limit.take(104)), (None, None));
        assert_eq!(limit.take(105), Some(Allowed { left_out: 2, is_last: false }));
    }
}
