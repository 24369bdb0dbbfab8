//! Changes a group. One function does all steps of a change, so that none is left out: lock the group, change it, queue the
//! records of the change, unlock it, do the follow-up work, and wake a member.

use super::cell::{GroupCell, GroupCore};
use super::dead_letter_queue::DeadLetterQueue;
use crate::clock::Clock;
use crate::delivery::Millis;
use crate::local::record_writer::{RecordWriter, Sending};
use crate::local::timer::Timer;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The other waiting members are woken this long after a member was woken, in case that member does not pull.
const WAKE_OTHERS_AFTER_MS: Millis = 20;

/// The parts that changes of groups need: the clock, the record writer, the timer, and the queue of dead letters.
pub(in crate::local) struct GroupRuntime {
    pub(in crate::local) clock: Arc<dyn Clock>,
    pub(in crate::local) records: RecordWriter,
    pub(in crate::local) timer: Timer,
    pub(in crate::local) dead_letters: DeadLetterQueue,
    /// Whether the store may have events that are addressed to one group.
    pub(in crate::local) has_addressees: AtomicBool,
}

/// Work that a change of a group leaves for the time after the group's lock is released.
#[derive(Clone, Copy, Default)]
struct FollowUp {
    /// The number of the last dead letter that the change queued; `None` if it queued none.
    last_dead_letter: Option<u64>,
    /// Whether deliveries wait until the records of the change are durable.
    is_urgent: bool,
}

impl GroupRuntime {
    /// Changes a group and records the changes. If there are events to deliver, wakes the next waiting member.
    pub(in crate::local) fn act<T>(
        &self,
        cell: &Arc<GroupCell>,
        change: impl FnOnce(&mut GroupCore, Millis) -> T,
    ) -> T {
        self.act_counting_dead_letters(cell, change).0
    }

    /// Like [`act`](Self::act), but also returns the number of the last dead letter that the change queued.
    pub(in crate::local) fn act_counting_dead_letters<T>(
        &self,
        cell: &Arc<GroupCell>,
        change: impl FnOnce(&mut GroupCore, Millis) -> T,
    ) -> (T, Option<u64>) {
        let now = self.clock.steady_ms();
        let mut core = cell.lock();
        let result = change(&mut core, now);
        let follow_up = self.write_down(cell, &mut core);
        let has_work = core.machine.has_work();
        drop(core);
        cell.waiters.wake_idle();
        self.follow_up(cell, follow_up);
        if has_work {
            self.wake_next(cell);
        }
        (result, follow_up.last_dead_letter)
    }

    /// Repeats `change` until it returns a value, and returns the value. If `change` returns `None` and there is no follow-up
    /// work, calls `wait` before the lock is released. If `wait` returns true, the caller has been registered as a waiter, and
    /// this returns `None`. Wakes no member.
    pub(in crate::local) fn act_or_wait<T>(
        &self,
        cell: &Arc<GroupCell>,
        mut change: impl FnMut(&mut GroupCore, Millis) -> Option<T>,
        mut wait: impl FnMut(&GroupCore) -> bool,
    ) -> Option<T> {
        let now = self.clock.steady_ms();
        let mut core = cell.lock();
        loop {
            let result = change(&mut core, now);
            let follow_up = self.write_down(cell, &mut core);
            if result.is_some() || follow_up.last_dead_letter.is_some() || follow_up.is_urgent {
                drop(core);
                cell.waiters.wake_idle();
                self.follow_up(cell, follow_up);
                if result.is_some() {
                    return result;
                }
                core = cell.lock();
            } else if wait(&core) {
                drop(core);
                cell.waiters.wake_idle();
                return None;
            }
        }
    }

    /// Changes a group with a closure that also appends to the engine. No other thread can append records of groups in between.
    pub(in crate::local) fn act_and_append<T>(
        &self,
        cell: &Arc<GroupCell>,
        change: impl FnOnce(&mut GroupCore, &mut Sending) -> T,
    ) -> T {
        let mut sending = self.records.lock();
        let mut core = cell.lock();
        let result = change(&mut core, &mut sending);
        let follow_up = self.write_down(cell, &mut core);
        let has_work = core.machine.has_work();
        drop(core);
        drop(sending);
        self.records.after_sending();
        cell.waiters.wake_idle();
        self.follow_up(cell, follow_up);
        if has_work {
            self.wake_next(cell);
        }
        result
    }

    /// Wakes the member that has waited longest. In case it does not pull, all members are woken a moment later.
    pub(in crate::local) fn wake_next(&self, cell: &Arc<GroupCell>) {
        if cell.waiters.wake_one() {
            self.wake_others_later(cell);
        }
    }

    /// Schedules waking the other waiting members, in case the member that was just woken does not pull.
    pub(in crate::local) fn wake_others_later(&self, cell: &Arc<GroupCell>) {
        self.timer.arm(cell, self.clock.steady_ms() + WAKE_OTHERS_AFTER_MS);
    }

    /// Takes from the machine the changes to record, the time of its next timer and the events that were given up, and passes
    /// them to the record writer, the timer and the queue of dead letters. Called with the group locked.
    fn write_down(&self, cell: &Arc<GroupCell>, core: &mut GroupCore) -> FollowUp {
        let mut is_urgent = false;
        let changes = core.machine.changes_mut();
        if !changes.is_empty() {
            let is_wanted = changes.is_wanted;
            let mut pending = cell.changes.lock();
            let generation = pending.add(changes);
            if !std::mem::replace(&mut pending.is_queued, true) {
                self.records.enqueue(cell);
            }
            drop(pending);
            is_urgent = core.machine.gate(generation);
            if is_wanted {
                self.timer.arm_flush(self.clock.steady_ms());
            }
        }
        is_urgent |= core.machine.take_mark_awaited();
        if let Some(at) = core.machine.wake_at() {
            self.timer.arm(cell, at);
        }
        let given_up = core.machine.take_given_up();
        let mut last_dead_letter = None;
        if !given_up.is_empty() {
            core.dead_letters_queued += given_up.len() as u64;
            let dead_letters = given_up.into_iter().map(|give_up| (Arc::clone(cell), give_up));
            self.dead_letters.extend(dead_letters);
            last_dead_letter = Some(core.dead_letters_queued);
        }
        FollowUp { last_dead_letter, is_urgent }
    }

    /// Does the follow-up work. Called without the group's lock.
    fn follow_up(&self, cell: &GroupCell, follow_up: FollowUp) {
        if follow_up.is_urgent && !cell.is_deleted() {
            self.records.demand();
        }
        if follow_up.last_dead_letter.is_some() {
            self.dead_letters.work();
        }
    }
}
