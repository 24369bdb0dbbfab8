//! One thread that looks at groups when a lease ends or a wait is over, and has acks written that nobody waits for. A group has
//! one entry, whatever the number of its leases.

use super::Local;
use super::cell::GroupCell;
use super::stop_clock::{LOOK_EVERY_MS, StopClock};
use crate::clock::Clock as _;
use crate::delivery::Millis;
use crate::publish::Line as _;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Acks that nobody waits for are written within this time.
pub(crate) const FLUSH_AFTER_MS: Millis = 4;

/// Records that found no room on the disk are tried again after this time, unless room is reported before.
const REFUSED_REST_MS: Millis = 100;

#[derive(Default)]
pub(crate) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
    is_flush_armed: AtomicBool,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<(Millis, u32), Weak<GroupCell>>,
    flush_at: Option<Millis>,
    is_stopped: bool,
}

impl State {
    fn next_at(&self) -> Option<Millis> {
        let first = self.groups.keys().next().map(|&(at, _)| at);
        first.into_iter().chain(self.flush_at).min()
    }
}

impl Timer {
    /// Looks at a group at this time, or before.
    pub(crate) fn arm(&self, cell: &Arc<GroupCell>, at: Millis) {
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

    /// Has the changes of groups written soon.
    pub(crate) fn arm_flush(&self, now: Millis) {
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

    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Does what is due. Answers when to come again.
    pub(crate) fn tick(&self, local: &Arc<Local>) -> Option<Millis> {
        let now = local.clock.steady_ms();
        loop {
            let mut state = self.state.lock();
            if state.flush_at.is_some_and(|at| at <= now) {
                state.flush_at = None;
                drop(state);
                self.is_flush_armed.store(false, Ordering::SeqCst);
                local.advance();
                if !local.flusher.flush(&*local.store, &*local.clock) || local.has_line() {
                    let rest = if local.flusher.is_refused() { REFUSED_REST_MS } else { 0 };
                    self.arm_flush(now + rest);
                }
                continue;
            }
            match state.groups.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let cell = entry.remove().upgrade();
                    if let Some(cell) = &cell {
                        cell.armed_at.store(u64::MAX, Ordering::Release);
                    }
                    drop(state);
                    if let Some(cell) = cell {
                        local.look_at(&cell, now);
                    }
                }
                _ => return state.next_at(),
            }
        }
    }

    /// The thread's work, until stopped.
    pub(crate) fn run(&self, local: &Weak<Local>, clock: &StopClock) {
        loop {
            let Some(strong) = local.upgrade() else { return };
            self.tick(&strong);
            drop(strong);
            let mut state = self.state.lock();
            if state.is_stopped {
                return;
            }
            match state.next_at() {
                None => {
                    // Nothing is timed, so a gap in the looks at the clock is of no interest, and this thread may sleep.
                    clock.unwatch();
                    self.changed.wait(&mut state);
                }
                Some(at) => {
                    clock.watch();
                    let wait = at.saturating_sub(clock.steady_ms()).min(LOOK_EVERY_MS);
                    if wait > 0 {
                        self.changed.wait_for(&mut state, Duration::from_millis(wait));
                    }
                }
            }
        }
    }
}
