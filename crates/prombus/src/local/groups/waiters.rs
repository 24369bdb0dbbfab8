//! The waiters of a group: members that wait for events or for room in their window (the number of events that a member may
//! hold), callers that wait until a generation (a numbered record of the group) is durable, and callers that wait until the group
//! is idle. Commits notify the waiters without taking the group's lock.

use super::pending_changes::RecordInFlight;
use crate::deferred_wakes::wake;
use crate::delivery::{Group, MemberId, SourceId};
use crate::local::lock_order::{RankedMutex, WAITERS};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

/// The waiters of a group, and the progress that commits have reported.
pub(in crate::local) struct Waiters {
    lists: RankedMutex<WAITERS, Lists>,
    /// The newest generation of records that is durable.
    durable: AtomicU64,
    /// The oldest generation whose record was refused because the disk is full; `u64::MAX` if there is none.
    refused_from: AtomicU64,
    /// The number of dead letters that were processed: written, postponed or dropped. They are processed in the order in which
    /// they were queued.
    dead_letters_done: AtomicU64,
    /// Whether callers may wait until the group is idle. It lets a change of the group skip the lock.
    has_idle_waiters: AtomicBool,
}

#[derive(Default)]
struct Lists {
    /// The newest durable seq of each topic, indexed by [`SourceId`].
    newest: Vec<u64>,
    /// Topics whose newest seq has changed since it was last passed to the machine.
    changed: Vec<SourceId>,
    /// For each topic: whether it is in `changed`.
    is_changed: Vec<bool>,
    /// Members that found no events, in the order of their turns: the one that has waited longest is first.
    for_events: VecDeque<WaitingMember>,
    /// The highest turn that was assigned to a member.
    newest_turn: u64,
    /// Members whose window is full, that are paused, or that wait for the leasing gate to open.
    for_window: Vec<(MemberId, Waker)>,
    /// Callers that wait until a generation is durable.
    for_generation: Vec<(u64, Waker)>,
    /// Callers that wait until a dead letter was processed.
    for_dead_letter: Vec<(u64, Waker)>,
    /// Callers that wait until the group is idle, by the number of the caller.
    for_idle: Vec<(u64, Waker)>,
}

/// A member that waits for events.
struct WaitingMember {
    member: MemberId,
    /// The member's place in the queue: lower turns come first.
    turn: u64,
    waker: Waker,
}

impl Default for Waiters {
    fn default() -> Self {
        Self {
            lists: RankedMutex::default(),
            durable: AtomicU64::new(0),
            refused_from: AtomicU64::new(u64::MAX),
            dead_letters_done: AtomicU64::new(0),
            has_idle_waiters: AtomicBool::new(false),
        }
    }
}

impl Waiters {
    pub(in crate::local) fn add_source(&self) {
        let mut lists = self.lists.lock();
        lists.newest.push(0);
        lists.is_changed.push(false);
    }

    pub(in crate::local) fn durable_generation(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Records that a topic has durable events up to this seq. Called after each commit. Returns the waker of the member that has
    /// waited longest, if any, which the caller must call; and whether other members still wait.
    pub(in crate::local) fn notice(&self, source: SourceId, newest_seq: u64) -> (Option<Waker>, bool) {
        let mut lists = self.lists.lock();
        let at = source.0 as usize;
        if newest_seq <= lists.newest[at] {
            return (None, false);
        }
        lists.newest[at] = newest_seq;
        if !std::mem::replace(&mut lists.is_changed[at], true) {
            lists.changed.push(source);
        }
        let woken = lists.for_events.pop_front().map(|waiting| waiting.waker);
        (woken, !lists.for_events.is_empty())
    }

    /// Tells the machine which events have become durable since the last call.
    pub(in crate::local) fn grant_new_events(&self, machine: &mut Group) {
        let mut lists = self.lists.lock();
        while let Some(source) = lists.changed.pop() {
            let at = source.0 as usize;
            lists.is_changed[at] = false;
            machine.grant(source, lists.newest[at]);
        }
    }

    /// Adds a member to the queue of members that wait for events. The member keeps its `turn` until it has received an event, so
    /// if it was woken in vain, it does not lose its place. Returns false if the member must look for events again, because an
    /// event or a record has become durable since it looked. `durable` is the durable generation at the time when it looked.
    pub(in crate::local) fn wait_for_events(
        &self,
        member: MemberId,
        turn: &mut Option<u64>,
        durable: u64,
        waker: &Waker,
    ) -> bool {
        let mut lists = self.lists.lock();
        // If a record becomes durable after this check, `record_durable` finds the member in the queue, because it takes the same
        // lock.
        if !lists.changed.is_empty() || self.durable_generation() != durable {
            return false;
        }
        if let Some(waiting) = lists.for_events.iter_mut().find(|waiting| waiting.member == member) {
            waiting.waker.clone_from(waker);
            return true;
        }
        let turn = *turn.get_or_insert_with(|| {
            lists.newest_turn += 1;
            lists.newest_turn
        });
        let before = lists.for_events.iter().rposition(|waiting| waiting.turn < turn);
        let waiting = WaitingMember { member, turn, waker: waker.clone() };
        lists.for_events.insert(before.map_or(0, |at| at + 1), waiting);
        true
    }

    /// Registers a member that waits for room in its own window. Called with the group locked, so that no settlement makes room
    /// before the member is registered.
    pub(in crate::local) fn wait_for_window(&self, member: MemberId, waker: &Waker) {
        let mut lists = self.lists.lock();
        match lists.for_window.iter_mut().find(|(waiter, _)| *waiter == member) {
            Some((_, known)) => known.clone_from(waker),
            None => lists.for_window.push((member, waker.clone())),
        }
    }

    /// Wakes members whose window may have room: the given member, or all if `member` is `None`.
    pub(in crate::local) fn wake_windows(&self, member: Option<MemberId>) {
        let mut lists = self.lists.lock();
        if lists.for_window.is_empty() {
            return;
        }
        let is_woken = |waiter: MemberId| member.is_none_or(|member| member == waiter);
        let all = std::mem::take(&mut lists.for_window).into_iter();
        let (woken, rest): (Vec<_>, Vec<_>) = all.partition(|(it, _)| is_woken(*it));
        lists.for_window = rest;
        drop(lists);
        woken.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// Registers a caller that waits until the group is idle. The caller must look at the group afterwards.
    pub(in crate::local) fn wait_for_idle(&self, caller: u64, waker: &Waker) {
        let mut lists = self.lists.lock();
        match lists.for_idle.iter_mut().find(|(known, _)| *known == caller) {
            Some((_, known)) => known.clone_from(waker),
            None => lists.for_idle.push((caller, waker.clone())),
        }
        self.has_idle_waiters.store(true, Ordering::Release);
    }

    pub(in crate::local) fn stop_waiting_for_idle(&self, caller: u64) {
        self.lists.lock().for_idle.retain(|(known, _)| *known != caller);
    }

    /// Wakes the callers that wait until the group is idle, to look again. Called after each change, without the group's lock.
    pub(in crate::local) fn wake_idle(&self) {
        // A caller that looked at the group before the change has set this before it took the group's lock.
        if !self.has_idle_waiters.load(Ordering::Acquire) {
            return;
        }
        let mut lists = self.lists.lock();
        self.has_idle_waiters.store(false, Ordering::Release);
        let woken = std::mem::take(&mut lists.for_idle);
        drop(lists);
        woken.into_iter().for_each(|(_, waker)| wake(waker));
    }

    pub(in crate::local) fn remove(&self, member: MemberId) {
        let mut lists = self.lists.lock();
        lists.for_events.retain(|waiting| waiting.member != member);
        lists.for_window.retain(|(waiter, _)| *waiter != member);
    }

    /// Wakes the member that has waited longest. Returns whether other members still wait.
    pub(in crate::local) fn wake_one(&self) -> bool {
        let mut lists = self.lists.lock();
        let woken = lists.for_events.pop_front();
        let others_wait = !lists.for_events.is_empty();
        drop(lists);
        if let Some(waiting) = woken {
            wake(waiting.waker);
        }
        others_wait
    }

    /// Wakes all members that wait for events.
    pub(in crate::local) fn wake_members(&self) {
        let woken = std::mem::take(&mut self.lists.lock().for_events);
        woken.into_iter().for_each(|waiting| wake(waiting.waker));
    }

    /// Wakes all waiters to check again: the group or a topic was deleted, or the bus is suspended, failed or closed.
    pub(in crate::local) fn wake_all(&self) {
        self.wake_windows(None);
        self.wake_members();
        self.wake_idle();
        let (generations, dead_letters) = {
            let mut lists = self.lists.lock();
            (std::mem::take(&mut lists.for_generation), std::mem::take(&mut lists.for_dead_letter))
        };
        generations.into_iter().chain(dead_letters).for_each(|(_, waker)| wake(waker));
    }

    /// Reports that a record is durable.
    pub(in crate::local) fn record_durable(&self, record: &RecordInFlight) {
        self.durable.fetch_max(record.generation, Ordering::AcqRel);
        let mut lists = self.lists.lock();
        if lists.for_generation.is_empty() && !record.wakes_members {
            return;
        }
        let mut woken = take_due(&mut lists.for_generation, |generation| generation <= record.generation);
        if record.wakes_members {
            // Wakes all members, in case the first one has stopped waiting.
            woken.extend(lists.for_events.drain(..).map(|waiting| waiting.waker));
        }
        drop(lists);
        woken.into_iter().for_each(wake);
    }

    /// Reports that a record was refused because the disk is full. Callers that wait for it, or for a later one, fail.
    pub(in crate::local) fn record_refused(&self, record: &RecordInFlight) {
        if record.generation == 0 || self.refused_from.load(Ordering::Acquire) <= record.generation {
            return;
        }
        self.refused_from.store(record.generation, Ordering::Release);
        let woken = take_due(&mut self.lists.lock().for_generation, |it| it >= record.generation);
        woken.into_iter().for_each(wake);
    }

    /// Reports that a record of the group was accepted again after a refusal.
    pub(in crate::local) fn records_accepted(&self) {
        self.refused_from.store(u64::MAX, Ordering::Release);
    }

    /// Whether the record of a generation cannot be written at present, because the disk is full.
    pub(in crate::local) fn is_refused(&self, generation: u64) -> bool {
        generation >= self.refused_from.load(Ordering::Acquire)
    }

    /// Registers a waker that is called when a generation is durable. Returns false if it is durable already.
    pub(in crate::local) fn wait_for_generation(&self, generation: u64, waker: &Waker) -> bool {
        if self.durable_generation() >= generation {
            return false;
        }
        let mut lists = self.lists.lock();
        if self.durable_generation() >= generation {
            return false;
        }
        push_waker(&mut lists.for_generation, generation, waker);
        true
    }

    /// Reports that one more dead letter was processed.
    pub(in crate::local) fn dead_letter_done(&self) {
        let mut lists = self.lists.lock();
        let done = self.dead_letters_done.fetch_add(1, Ordering::AcqRel) + 1;
        let woken = take_due(&mut lists.for_dead_letter, |dead_letter| dead_letter <= done);
        drop(lists);
        woken.into_iter().for_each(wake);
    }

    /// Registers a waker that is called when the dead letter with this number was processed. Returns false if it was processed
    /// already.
    pub(in crate::local) fn wait_for_dead_letter(&self, dead_letter: u64, waker: &Waker) -> bool {
        if self.dead_letters_done.load(Ordering::Acquire) >= dead_letter {
            return false;
        }
        let mut lists = self.lists.lock();
        if self.dead_letters_done.load(Ordering::Acquire) >= dead_letter {
            return false;
        }
        push_waker(&mut lists.for_dead_letter, dead_letter, waker);
        true
    }
}

fn push_waker(list: &mut Vec<(u64, Waker)>, number: u64, waker: &Waker) {
    let is_known = |(known, other): &(u64, Waker)| *known == number && other.will_wake(waker);
    if !list.iter().rev().take(8).any(is_known) {
        list.push((number, waker.clone()));
    }
}

/// Removes and returns the wakers whose number is due.
fn take_due(list: &mut Vec<(u64, Waker)>, is_due: impl Fn(u64) -> bool) -> Vec<Waker> {
    let due = list.extract_if(.., |(number, _)| is_due(*number));
    due.map(|(_, waker)| waker).collect()
}
