//! A group at work: the machine under a lock, and around it what must be quick to reach without that lock: the bell that
//! commits ring, and the changes that wait to be written.
//!
//! Locks are taken in this order, and none is held while waiting for anything: flusher, core, then bell or delta.

use super::quiet::wake;
use super::side_by_side::SIDE_BY_SIDE;
use crate::backend::GroupSpec;
use crate::clock::Clock;
use crate::delivery::{AttemptsChange, Changes, ErrorBudget, Group, MemberId, Millis, Restored, SourceId};
use crate::store::{GroupAttempts, GroupProgress, StateRecord, TopicId};
use parking_lot::Mutex;
use prombus_protocol::Topic;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

pub(crate) struct GroupCell {
    pub(crate) number: u32,
    pub(crate) spec: GroupSpec,
    pub(crate) made_ms: i64,
    /// The batch that made it; zero when it was there at open.
    pub(crate) made_in: u64,
    pub(crate) core: Mutex<Core>,
    bell: Mutex<Bell>,
    pub(crate) delta: Mutex<Delta>,
    /// The newest generation of changes that is durable.
    durable: AtomicU64,
    /// The oldest generation whose record found no room on the disk; `u64::MAX` for none.
    refused_from: AtomicU64,
    /// Rate limit of the log line about dead letters that wait for room.
    pub(crate) letter_notice: Mutex<LetterNotice>,
    /// When the timer looks at this group next; `u64::MAX` for never.
    pub(crate) armed_at: AtomicU64,
    pub(crate) is_deleted: AtomicBool,
    /// Rises when all leases become void: with a seek, and when the group is deleted.
    pub(crate) epoch: AtomicU64,
    /// Since when it has no members, by the steady clock; `u64::MAX` while it has some.
    pub(crate) deserted_at: AtomicU64,
}

/// What the group's own lock guards.
pub(crate) struct Core {
    pub(crate) machine: Group,
    /// By source.
    pub(crate) topics: Vec<GroupTopic>,
    /// Topics of which retention took events before the group had them, and it was said.
    pub(crate) told_missed: HashSet<SourceId>,
    /// Where members outside of this process are.
    pub(crate) labels: HashMap<MemberId, String>,
    /// What members are called.
    pub(crate) names: HashMap<MemberId, String>,
}

/// A topic that a group reads.
#[derive(Clone, Debug)]
pub(crate) struct GroupTopic {
    pub(crate) id: TopicId,
    pub(crate) name: Topic,
    /// It was deleted; if there is one of its name again, that is another source.
    pub(crate) is_deleted: bool,
}

impl Core {
    /// The topics that are there.
    pub(crate) fn live_topics(&self) -> impl Iterator<Item = (SourceId, &GroupTopic)> {
        (0..).map(SourceId).zip(&self.topics).filter(|(_, topic)| !topic.is_deleted)
    }

    /// A topic was deleted: nothing of it is delivered any more, and leases of it are void.
    pub(crate) fn drop_source(&mut self, source: SourceId) {
        self.machine.drop_source(source);
        self.topics[source.0 as usize].is_deleted = true;
        self.told_missed.remove(&source);
    }
}

/// Rung by commits: which topics have something new, and who waits for it.
#[derive(Default)]
struct Bell {
    /// The newest durable seq by source.
    newest: Vec<u64>,
    /// Sources whose newest seq the machine has not been told.
    noticed: Vec<SourceId>,
    is_noticed: Vec<bool>,
    /// Members that found nothing, the one that waits longest first.
    waiters: VecDeque<(MemberId, Waker)>,
    /// Members that have all they may have, or are paused.
    full: Vec<(MemberId, Waker)>,
    /// Who waits for a generation to be durable.
    tickets: Vec<(u64, Waker)>,
}

/// Dead letters that could not be written, since that was last logged.
#[derive(Default)]
pub(crate) struct LetterNotice {
    pub(crate) next_at: Millis,
    pub(crate) count: u64,
}

/// Changes that wait to be written.
#[derive(Default)]
pub(crate) struct Delta {
    changes: Changes,
    /// The number that the next record gets.
    generation: u64,
    /// It stands in the flusher's queue.
    pub(crate) is_queued: bool,
    topics: Vec<TopicId>,
}

/// A record on its way to disk.
pub(crate) struct Flushed {
    pub(crate) generation: u64,
    /// Members may wait for it: for an event that failed, or for a lease mark.
    pub(crate) wakes_members: bool,
}

impl GroupCell {
    pub(crate) fn new(
        number: u32,
        spec: GroupSpec,
        made_ms: i64,
        made_in: u64,
        error_budget: &ErrorBudget,
    ) -> Self {
        Self {
            number,
            spec,
            made_ms,
            made_in,
            core: Mutex::new(Core {
                machine: Group::new(u64::from(number) << 20)
                    .with_topics_side_by_side(SIDE_BY_SIDE)
                    .with_error_budget(error_budget.clone()),
                topics: Vec::new(),
                told_missed: HashSet::new(),
                labels: HashMap::new(),
                names: HashMap::new(),
            }),
            bell: Mutex::default(),
            delta: Mutex::new(Delta { generation: 1, ..Delta::default() }),
            durable: AtomicU64::new(0),
            refused_from: AtomicU64::new(u64::MAX),
            letter_notice: Mutex::default(),
            armed_at: AtomicU64::new(u64::MAX),
            is_deleted: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            deserted_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether it reads a topic.
    pub(crate) fn wants(&self, topic: &Topic) -> bool {
        self.spec.subscription.matches(topic.as_str())
            || self.spec.topics.iter().any(|pattern| pattern.matches(topic.as_str()))
    }

    pub(crate) fn add_topic(&self, id: TopicId, name: &Topic, restored: Restored) -> SourceId {
        let mut core = self.core.lock();
        let source = core.machine.add_source(restored);
        core.topics.push(GroupTopic { id, name: name.clone(), is_deleted: false });
        let mut bell = self.bell.lock();
        bell.newest.push(0);
        bell.is_noticed.push(false);
        self.delta.lock().topics.push(id);
        source
    }

    /// All leases are void from now on.
    pub(crate) fn epoch_rises(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn durable_generation(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// A topic has durable events up to here. Called from the commit: takes the bell's lock only. Answers whom to wake, and
    /// whether others go on waiting.
    pub(crate) fn notice(&self, source: SourceId, newest_seq: u64) -> (Option<Waker>, bool) {
        let mut bell = self.bell.lock();
        let at = source.0 as usize;
        if newest_seq <= bell.newest[at] {
            return (None, false);
        }
        bell.newest[at] = newest_seq;
        if !std::mem::replace(&mut bell.is_noticed[at], true) {
            bell.noticed.push(source);
        }
        let called = bell.waiters.pop_front().map(|(_, waker)| waker);
        (called, !bell.waiters.is_empty())
    }

    /// Tells the machine what became durable since the last time.
    pub(crate) fn grant_noticed(&self, core: &mut Core) {
        let mut bell = self.bell.lock();
        while let Some(source) = bell.noticed.pop() {
            let at = source.0 as usize;
            bell.is_noticed[at] = false;
            core.machine.grant(source, bell.newest[at]);
        }
    }

    /// Queues a member behind those that wait already; false when something came in between: an event, or a record that was not
    /// durable when the member looked. `durable` is the durable generation that it saw.
    pub(crate) fn wait(&self, member: MemberId, durable: u64, waker: &Waker) -> bool {
        let mut bell = self.bell.lock();
        // A record that becomes durable after this look finds the member in the queue: it takes the same lock.
        if !bell.noticed.is_empty() || self.durable_generation() != durable {
            return false;
        }
        match bell.waiters.iter_mut().find(|(waiter, _)| *waiter == member) {
            Some((_, known)) => known.clone_from(waker),
            None => bell.waiters.push_back((member, waker.clone())),
        }
        true
    }

    /// Waits for room in the member's own window. Called with the core locked, so no settlement comes in between.
    pub(crate) fn wait_for_window(&self, member: MemberId, waker: &Waker) {
        let mut bell = self.bell.lock();
        match bell.full.iter_mut().find(|(waiter, _)| *waiter == member) {
            Some((_, known)) => known.clone_from(waker),
            None => bell.full.push((member, waker.clone())),
        }
    }

    /// Wakes members that have room again: this one, or whoever.
    pub(crate) fn wake_full(&self, member: Option<MemberId>) {
        let mut bell = self.bell.lock();
        if bell.full.is_empty() {
            return;
        }
        let is_woken = |waiter: MemberId| member.is_none_or(|member| member == waiter);
        let (woken, rest) = std::mem::take(&mut bell.full).into_iter().partition(|(it, _)| is_woken(*it));
        bell.full = rest;
        drop(bell);
        let woken: Vec<(MemberId, Waker)> = woken;
        woken.into_iter().for_each(|(_, waker)| wake(waker));
    }

    pub(crate) fn stop_waiting(&self, member: MemberId) {
        let mut bell = self.bell.lock();
        bell.waiters.retain(|(waiter, _)| *waiter != member);
        bell.full.retain(|(waiter, _)| *waiter != member);
    }

    /// Wakes the member that waits longest. Answers whether others go on waiting.
    pub(crate) fn wake_one(&self) -> bool {
        let mut bell = self.bell.lock();
        let woken = bell.waiters.pop_front();
        let others_wait = !bell.waiters.is_empty();
        drop(bell);
        if let Some((_, waker)) = woken {
            wake(waker);
        }
        others_wait
    }

    /// Wakes all members that wait for something to do.
    pub(crate) fn wake_waiters(&self) {
        let woken = std::mem::take(&mut self.bell.lock().waiters);
        woken.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// Wakes everyone, because everything is different now.
    pub(crate) fn wake_all(&self) {
        self.wake_full(None);
        let (waiters, tickets) = {
            let mut bell = self.bell.lock();
            (std::mem::take(&mut bell.waiters), std::mem::take(&mut bell.tickets))
        };
        waiters.into_iter().for_each(|(_, waker)| wake(waker));
        tickets.into_iter().for_each(|(_, waker)| wake(waker));
    }

    /// A record is durable.
    pub(crate) fn flushed(&self, flushed: &Flushed) {
        self.durable.fetch_max(flushed.generation, Ordering::AcqRel);
        let mut bell = self.bell.lock();
        if bell.tickets.is_empty() && !flushed.wakes_members {
            return;
        }
        let mut woken = Vec::new();
        bell.tickets.retain(|(generation, waker)| {
            let is_done = *generation <= flushed.generation;
            if is_done {
                woken.push(waker.clone());
            }
            !is_done
        });
        if flushed.wakes_members {
            // Whichever of them still waits: one that stopped must not keep the events from the others.
            woken.extend(bell.waiters.drain(..).map(|(_, waker)| waker));
        }
        drop(bell);
        woken.into_iter().for_each(wake);
    }

    /// A record found no room: those who wait for it, or for a later one, are told.
    pub(crate) fn refused(&self, flushed: &Flushed) {
        if flushed.generation == 0 || self.refused_from.load(Ordering::Acquire) <= flushed.generation {
            return;
        }
        self.refused_from.store(flushed.generation, Ordering::Release);
        self.wake_tickets_from(flushed.generation);
    }

    /// Its records found room again.
    pub(crate) fn accepted(&self) {
        self.refused_from.store(u64::MAX, Ordering::Release);
    }

    /// Whether the record of a generation waits for room on the disk.
    pub(crate) fn is_refused(&self, generation: u64) -> bool {
        generation >= self.refused_from.load(Ordering::Acquire)
    }

    fn wake_tickets_from(&self, first: u64) {
        let mut woken = Vec::new();
        self.bell.lock().tickets.retain(|(generation, waker)| {
            let is_woken = *generation >= first;
            if is_woken {
                woken.push(waker.clone());
            }
            !is_woken
        });
        woken.into_iter().for_each(wake);
    }

    /// Has the caller woken when a generation is durable; false when it is already.
    pub(crate) fn await_generation(&self, generation: u64, waker: &Waker) -> bool {
        if self.durable_generation() >= generation {
            return false;
        }
        let mut bell = self.bell.lock();
        if self.durable_generation() >= generation {
            return false;
        }
        let is_known = |(known, other): &(u64, Waker)| *known == generation && other.will_wake(waker);
        if !bell.tickets.iter().rev().take(8).any(is_known) {
            bell.tickets.push((generation, waker.clone()));
        }
        true
    }
}

impl Delta {
    /// Takes in what the machine wants written down. Answers the generation that it is part of.
    pub(crate) fn take_in(&mut self, changes: &mut Changes) -> u64 {
        if self.changes.is_empty() {
            std::mem::swap(&mut self.changes, changes);
        } else {
            self.changes.is_wanted |= changes.is_wanted;
            self.changes.attempts.append(&mut changes.attempts);
            self.changes.marks.append(&mut changes.marks);
            for range in changes.settled.drain(..) {
                match self.changes.settled.last_mut() {
                    Some(last) if last.0 == range.0 && last.2 + 1 == range.1 => last.2 = range.2,
                    _ => self.changes.settled.push(range),
                }
            }
        }
        changes.is_wanted = false;
        self.generation
    }

    /// The generation that changes made now are part of, or that is on its way.
    pub(crate) fn current_generation(&self) -> u64 {
        if self.changes.is_empty() { self.generation - 1 } else { self.generation }
    }

    /// Starts a new generation, whose record the caller writes; answers its number.
    pub(crate) fn begin_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation - 1
    }

    /// The newest generation has no record after all.
    pub(crate) fn end_generation(&mut self, generation: u64) {
        debug_assert_eq!(self.generation, generation + 1, "none was begun behind it");
        self.generation = generation;
    }

    /// Makes a record of the changes.
    pub(crate) fn take_record(&mut self, group: u32, clock: &dyn Clock) -> Option<(StateRecord, Flushed)> {
        self.is_queued = false;
        if self.changes.is_empty() {
            return None;
        }
        let mut changes = std::mem::take(&mut self.changes);
        let has_attempts = !changes.attempts.is_empty();
        let wakes_members = has_attempts || !changes.marks.is_empty();
        let flushed = Flushed { generation: self.begin_generation(), wakes_members };
        let mut topics: BTreeMap<SourceId, GroupProgress> = BTreeMap::new();
        let topic = |source: SourceId| GroupProgress {
            topic: self.topics[source.0 as usize],
            settled: Vec::new(),
            attempts: Vec::new(),
            leased_to: None,
        };
        changes.settled.sort_unstable();
        for (source, first, last) in changes.settled.drain(..) {
            let progress = topics.entry(source).or_insert_with(|| topic(source));
            match progress.settled.last_mut() {
                Some(range) if range.1 + 1 >= first => range.1 = range.1.max(last),
                _ => progress.settled.push((first, last)),
            }
        }
        if has_attempts {
            let (steady, wall) = (clock.steady_ms(), clock.wall_ms());
            let mut seen = HashSet::new();
            for &AttemptsChange { position, attempts, not_before, reason } in changes.attempts.iter().rev() {
                // The newest of each event counts.
                if seen.insert(position) {
                    let progress = topics.entry(position.source).or_insert_with(|| topic(position.source));
                    let not_before_ms = match not_before.saturating_sub(steady) {
                        0 => 0,
                        wait => wall.saturating_add_unsigned(wait),
                    };
                    progress.attempts.push(GroupAttempts {
                        seq: position.seq,
                        attempts,
                        not_before_ms,
                        reason,
                    });
                }
            }
            changes.attempts.clear();
        }
        for (source, leased_to) in changes.marks.drain(..) {
            topics.entry(source).or_insert_with(|| topic(source)).leased_to = Some(leased_to);
        }
        changes.is_wanted = false;
        // Its lists are used again.
        self.changes = changes;
        Some((StateRecord::Progress { group, topics: topics.into_values().collect() }, flushed))
    }
}
