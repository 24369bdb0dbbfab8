//! The timers of the backend: when there is timed work for a group, when acks that no caller waits for are written, and when a
//! suspension of the engine is reported. A group has at most one entry, no matter how many leases it has.

use super::ack_bound::FLUSH_AFTER_MS;
use super::groups::cell::GroupCell;
use super::stop_clock::{READ_EVERY_MS, StopClock};
use crate::clock::Clock as _;
use crate::delivery::Millis;
use crate::engine::MayBlock;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Work that is due.
pub(super) enum Due {
    /// Work that is due at once: to check a suspension that has just begun, or to write dead letters in a bus without threads.
    Work,
    /// To check whether a suspension has lasted longer than publishers wait.
    SuspensionCheck,
    /// To write group records that no caller waits for.
    Flush,
    /// Timed work for a group, for example because a lease has expired or a delay has ended.
    Group(Arc<GroupCell>),
}

#[derive(Default)]
pub(super) struct Timer {
    state: Mutex<Entries>,
    changed: Condvar,
    /// Whether `flush_at` is set. If it is, callers need not take the lock.
    is_flush_armed: AtomicBool,
}

#[derive(Default)]
struct Entries {
    /// The groups, by the time of their next work and their number.
    groups: BTreeMap<(Millis, u32), Weak<GroupCell>>,
    /// When group records that no caller waits for are written.
    flush_at: Option<Millis>,
    /// When the suspension of the engine is checked. It is separate from `flush_at`, because acks are written soon, and
    /// publishers wait for the engine much longer.
    suspension_check_at: Option<Millis>,
    is_woken: bool,
    is_stopped: bool,
}

impl Entries {
    fn next_at(&self) -> Option<Millis> {
        let first = self.groups.keys().next().map(|&(at, _)| at);
        let now = self.is_woken.then_some(0);
        now.into_iter().chain(first).chain(self.flush_at).chain(self.suspension_check_at).min()
    }
}

impl Timer {
    /// Schedules work for a group at this time, unless work is already scheduled at this time or earlier.
    pub(super) fn arm(&self, cell: &Arc<GroupCell>, at: Millis) {
        if cell.armed_at.load(Ordering::Acquire) <= at {
            return;
        }
        let mut state = self.state.lock();
        let before = cell.armed_at.load(Ordering::Acquire);
        if before <= at {
            return;
        }
        let is_next = state.next_at().is_none_or(|next| at < next);
        state.groups.remove(&(before, cell.number));
        state.groups.insert((at, cell.number), Arc::downgrade(cell));
        cell.armed_at.store(at, Ordering::Release);
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Schedules the writing of group records that no caller waits for.
    pub(super) fn arm_flush(&self, now: Millis) {
        if self.is_flush_armed.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        let at = now + FLUSH_AFTER_MS;
        let is_next = state.next_at().is_none_or(|next| at < next);
        state.flush_at = Some(at);
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Schedules a check of the engine's suspension.
    pub(super) fn arm_suspension_check(&self, at: Millis) {
        let mut state = self.state.lock();
        let is_next = state.next_at().is_none_or(|next| at < next);
        state.suspension_check_at = Some(at);
        drop(state);
        if is_next {
            self.changed.notify_one();
        }
    }

    /// Cancels the check, because the suspension is over.
    pub(super) fn disarm_suspension_check(&self) {
        self.state.lock().suspension_check_at = None;
    }

    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Makes the timer thread look for work now.
    pub(super) fn wake(&self) {
        self.state.lock().is_woken = true;
        self.changed.notify_one();
    }

    /// Removes and returns work that is due. If none is due, returns `Err` with the time at which to ask again.
    pub(super) fn take_due(&self, now: Millis) -> Result<Due, Option<Millis>> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_woken) {
            return Ok(Due::Work);
        }
        if state.flush_at.take_if(|at| *at <= now).is_some() {
            drop(state);
            self.is_flush_armed.store(false, Ordering::SeqCst);
            return Ok(Due::Flush);
        }
        if state.suspension_check_at.take_if(|at| *at <= now).is_some() {
            return Ok(Due::SuspensionCheck);
        }
        while let Some(entry) = state.groups.first_entry().filter(|entry| entry.key().0 <= now) {
            if let Some(cell) = entry.remove().upgrade() {
                cell.armed_at.store(u64::MAX, Ordering::Release);
                return Ok(Due::Group(cell));
            }
        }
        Err(state.next_at())
    }

    /// Sleeps until work may be due, or for a short time. Returns false if the timer was stopped.
    pub(super) fn sleep(&self, clock: &StopClock, _may_block: MayBlock) -> bool {
        let mut state = self.state.lock();
        if state.is_stopped {
            return false;
        }
        match state.next_at() {
            None => {
                // No timer is set, so the clock need not be read regularly, and this thread may sleep until it is notified.
                clock.unwatch();
                self.changed.wait(&mut state);
            }
            Some(at) => {
                clock.watch();
                let wait = at.saturating_sub(clock.steady_ms()).min(READ_EVERY_MS);
                if wait > 0 {
                    self.changed.wait_for(&mut state, Duration::from_millis(wait));
                }
            }
        }
        true
    }
}
