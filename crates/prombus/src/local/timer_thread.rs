//! The timer thread: expires leases, writes acks that no caller waits for, appends waiting publishes, and reports a suspension.
//! It never reads events, because a read from a failing disk would delay the expiry of leases.

use super::Local;
use super::stop_clock::StopClock;
use super::timer::Due;
use crate::delivery::Millis;
use crate::engine::MayBlock;
use crate::publishing::PublishLine as _;
use std::sync::{Arc, Weak};

/// The wait before records that found no space on the disk are retried, unless the engine reports room earlier.
const REFUSED_RETRY_MS: Millis = 100;

impl Local {
    /// Does the work that is due. Returns when to call it again, by the steady clock.
    pub(super) fn tick(&self) -> Option<Millis> {
        let now = self.clock.steady_ms();
        loop {
            match self.runtime.timer.take_due(now) {
                Ok(Due::Work) => {
                    if !self.runtime.dead_letters.has_thread() {
                        self.dead_letters.work();
                    }
                }
                Ok(Due::SuspensionCheck) => {}
                Ok(Due::Flush) => self.flush(now),
                Ok(Due::Group(cell)) => self.groups.advance_timers(&cell, now),
                Err(next) => return next,
            }
            self.check_suspension(now);
        }
    }

    /// Writes group records that no caller waits for, and appends waiting publishes.
    fn flush(&self, now: Millis) {
        self.publishing.advance();
        let records = &self.runtime.records;
        if !records.flush() || self.publishing.has_line() {
            let delay = if records.is_refused() { REFUSED_RETRY_MS } else { 0 };
            self.runtime.timer.arm_flush(now + delay);
        }
    }

    /// Makes waiting publishers fail if the engine has been suspended for too long.
    pub(super) fn check_suspension(&self, now: Millis) {
        let (again_at, failed) = self.suspension.check(now, self.engine_wait_ms, &self.commits);
        if let Some(at) = again_at {
            self.runtime.timer.arm_suspension_check(at);
        }
        if let Some(reason) = failed {
            self.publishing.refuse_line(&reason);
            self.registry.all_groups().iter().for_each(|cell| cell.waiters.wake_all());
        }
    }
}

/// Runs the loop of the timer thread, until the timer is stopped.
pub(super) fn run(local: &Weak<Local>, clock: &StopClock) {
    let may_block = MayBlock::on_this_thread();
    loop {
        // The thread must not keep the bus alive while it sleeps.
        let Some(strong) = local.upgrade() else { return };
        strong.tick();
        let runtime = Arc::clone(&strong.runtime);
        drop(strong);
        if !runtime.timer.sleep(clock, may_block) {
            return;
        }
    }
}
