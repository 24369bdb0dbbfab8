//! Tracks a suspension of the engine: a time in which it cannot commit and keeps trying. Publishers wait for up to
//! `engine_wait_ms`; if the suspension lasts longer, they fail with `unavailable`.

use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::Millis;
use crate::error::Unavailable;
use parking_lot::Mutex;

/// Whether the engine is suspended, and since when.
#[derive(Default)]
pub(super) struct Suspension(Mutex<Option<Suspended>>);

struct Suspended {
    reason: String,
    /// When the suspension began, by the steady clock.
    since: Millis,
    /// Whether the waiting callers were told to fail.
    is_reported: bool,
}

impl Suspension {
    pub(super) fn begin(&self, reason: String, now: Millis) {
        let mut suspended = self.0.lock();
        if suspended.is_none() {
            *suspended = Some(Suspended { reason, since: now, is_reported: false });
        }
    }

    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Makes all waiting callers fail if the suspension has lasted for `wait_ms`. Returns the time at which to check again
    /// (`None` if that is not needed), and the reason if this call made the callers fail.
    pub(super) fn check(
        &self,
        now: Millis,
        wait_ms: Millis,
        commits: &CommitWatch,
    ) -> (Option<Millis>, Option<Unavailable>) {
        // The lock is held while the suspension is reported, so that it cannot be reported after its end. Wakers run after the
        // lock is released, because the code that they run may need the lock.
        let _deferred = DeferredWakes::enter();
        let mut suspended = self.0.lock();
        let Some(it) = suspended.as_mut().filter(|it| !it.is_reported) else { return (None, None) };
        let report_at = it.since.saturating_add(wait_ms);
        if now < report_at {
            return (Some(report_at), None);
        }
        it.is_reported = true;
        let reason = Unavailable::Suspended(it.reason.clone());
        commits.suspend(reason.clone());
        (None, Some(reason))
    }
}
