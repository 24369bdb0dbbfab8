//! Disables the timer slack of the current thread.

use std::num::NonZeroU64;

/// While this value exists, the thread's sleeps end on time instead of up to 50 µs later. Dropping it restores the previous slack,
/// because programs that the thread starts inherit the slack.
pub(super) struct NoTimerSlack {
    before: Option<NonZeroU64>,
}

impl NoTimerSlack {
    pub(super) fn set() -> Self {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self { before }
    }
}

impl Drop for NoTimerSlack {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.before);
    }
}
