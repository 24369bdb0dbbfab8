//! The thread that does what is due: ends leases, has acks written that nobody waits for, moves publishes that wait, tells of a
//! suspension. It never reads events: a failing disk must not keep leases from ending.

use super::Local;
use super::stop_clock::StopClock;
use super::timer::Due;
use crate::delivery::Millis;
use crate::engine::MayBlock;
use crate::publishing::PublishLine as _;
use std::sync::{Arc, Weak};

/// Records that found no room on the disk are tried again after this time, unless room is reported before.
const REFUSED_REST_MS: Millis = 100;

impl Local {
    /// Does what is due. Returns when to call again, by the steady clock.
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

    /// Writes group records that nobody waits for, and moves publishes that wait.
    fn flush(&self, now: Millis) {
        self.publishing.advance();
        let records = &self.runtime.records;
        if !records.flush() || self.publishing.has_line() {
            let rest = if records.is_refused() { REFUSED_REST_MS } else { 0 };
            self.runtime.timer.arm_flush(now + rest);
        }
    }

    /// Tells publishers when the engine has been suspended for too long.
    pub(super) fn check_suspension(&self, now: Millis) {
        let (again_at, told) = self.suspension.check(now, self.engine_wait_ms, &self.commits);
        if let Some(at) = again_at {
            self.runtime.timer.arm_suspension_check(at);
        }
        if let Some(reason) = told {
            self.publishing.refuse_line(&reason);
            self.registry.all_groups().iter().for_each(|cell| cell.waiters.wake_all());
        }
    }
}

/// The thread's work, until the timer is stopped.
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
