//! Timers of this thread without slack.

use std::num::NonZeroU64;

/// A message goes at its time, not up to 50 µs later. Dropping it restores the slack: programs that a thread starts inherit it.
pub(super) struct SharpTimers {
    before: Option<NonZeroU64>,
}

impl SharpTimers {
    pub(super) fn set() -> Self {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self { before }
    }
}

impl Drop for SharpTimers {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.before);
    }
}
