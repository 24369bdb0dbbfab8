//! A suspension of the engine: how long it has lasted. Publishers wait for `engine_wait_ms` before they fail with `unavailable`.

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
    /// The waiting callers were failed.
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

    /// Fails all waiting callers when the suspension has lasted for `wait_ms`. Returns when to check again, and the reason if the
    /// callers were failed by this call.
    pub(super) fn check(
        &self,
        now: Millis,
        wait_ms: Millis,
        commits: &CommitWatch,
    ) -> (Option<Millis>, Option<Unavailable>) {
        // A waker may end the suspension, so wakers run after the lock is released. The lock is held during the
        // report, so that a suspension cannot be reported after its end.
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
