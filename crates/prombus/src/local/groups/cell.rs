//! A group: the group machine and the lock that guards it, and the state that must be accessible without that lock.
//!
//! The machine is changed only through [`GroupRuntime::act`](super::act::GroupRuntime::act), which records the changes and wakes
//! members; [`GroupCell::inspect`] only reads.

use super::pending_changes::PendingChanges;
use super::waiters::Waiters;
use crate::backend::GroupSpec;
use crate::delivery::{ErrorBudget, Group, MemberId, Millis, Restored, SourceId};
use crate::engine::TopicId;
use crate::local::lock_order::{CHANGES, GROUP, LEAF, RankedGuard, RankedMutex};
use prombus_protocol::{Pattern, Topic};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum number of topics that a pull reads at the same time.
pub(in crate::local) const TOPICS_SIDE_BY_SIDE: usize = 256;

pub(in crate::local) struct GroupCell {
    /// The number of the group, which is never reused.
    pub(in crate::local) number: u32,
    pub(in crate::local) spec: GroupSpec,
    /// When the group was created, in milliseconds since 1970.
    pub(in crate::local) made_ms: i64,
    /// The commit that created the group; zero if the group was restored at open.
    pub(in crate::local) creation_commit: u64,
    core: RankedMutex<GROUP, GroupCore>,
    pub(in crate::local) waiters: Waiters,
    pub(in crate::local) changes: RankedMutex<CHANGES, PendingChanges>,
    /// Rate limit of the log line about dead letters that could not be written.
    pub(in crate::local) dead_letter_notice: RankedMutex<LEAF, DeadLetterNotice>,
    /// When the timer has work for this group next; `u64::MAX` if no work is scheduled.
    pub(in crate::local) armed_at: AtomicU64,
    is_deleted: AtomicBool,
    /// A number that rises when leases become void: when the group is moved, and when the group or one of its topics is deleted.
    epoch: AtomicU64,
    /// The time of the steady clock since which the group has no members; `u64::MAX` while it has members, or if it never
    /// expires.
    pub(in crate::local) empty_since: AtomicU64,
}

/// The state that the group's lock guards.
pub(in crate::local) struct GroupCore {
    pub(in crate::local) machine: Group,
    /// The topics of the group. The index of a topic is its [`SourceId`].
    pub(in crate::local) topics: Vec<GroupTopic>,
    /// The topics for which it was logged that retention removed events before the group received them.
    pub(in crate::local) logged_missed: HashSet<SourceId>,
    /// The addresses of members outside this process.
    pub(in crate::local) labels: HashMap<MemberId, String>,
    /// The names of members.
    pub(in crate::local) names: HashMap<MemberId, String>,
    /// The number of dead letters that were queued since the bus was opened.
    pub(in crate::local) dead_letters_queued: u64,
}

/// A topic that a group reads.
#[derive(Clone, Debug)]
pub(in crate::local) struct GroupTopic {
    pub(in crate::local) id: TopicId,
    pub(in crate::local) name: Topic,
    /// Whether the topic was deleted. A later topic of the same name gets another [`SourceId`].
    pub(in crate::local) is_deleted: bool,
}

/// Limits how often failed attempts to write dead letters are logged.
#[derive(Default)]
pub(in crate::local) struct DeadLetterNotice {
    /// The earliest time of the next log line.
    pub(in crate::local) next_at: Millis,
    /// The number of failed attempts since the last log line.
    pub(in crate::local) count: u64,
}

impl GroupCore {
    /// The topics that are not deleted.
    pub(in crate::local) fn live_topics(&self) -> impl Iterator<Item = (SourceId, &GroupTopic)> {
        (0..).map(SourceId).zip(&self.topics).filter(|(_, topic)| !topic.is_deleted)
    }

    pub(in crate::local) fn topic(&self, source: SourceId) -> &GroupTopic {
        &self.topics[source.0 as usize]
    }

    /// Removes a topic that was deleted: its events are not delivered any more, and their leases become void.
    pub(in crate::local) fn drop_source(&mut self, source: SourceId) {
        self.machine.drop_source(source);
        self.topics[source.0 as usize].is_deleted = true;
        self.logged_missed.remove(&source);
    }

    pub(in crate::local) fn forget_member(&mut self, member: MemberId) {
        self.labels.remove(&member);
        self.names.remove(&member);
    }
}

impl GroupCell {
    pub(in crate::local) fn new(
        number: u32,
        spec: GroupSpec,
        made_ms: i64,
        creation_commit: u64,
        error_budget: &ErrorBudget,
    ) -> Self {
        Self {
            number,
            spec,
            made_ms,
            creation_commit,
            core: RankedMutex::new(GroupCore {
                machine: Group::new(u64::from(number) << 20)
                    .with_topics_side_by_side(TOPICS_SIDE_BY_SIDE)
                    .with_error_budget(error_budget.clone()),
                topics: Vec::new(),
                logged_missed: HashSet::new(),
                labels: HashMap::new(),
                names: HashMap::new(),
                dead_letters_queued: 0,
            }),
            waiters: Waiters::default(),
            changes: RankedMutex::default(),
            dead_letter_notice: RankedMutex::default(),
            armed_at: AtomicU64::new(u64::MAX),
            is_deleted: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            empty_since: AtomicU64::new(u64::MAX),
        }
    }

    /// The topics and patterns that the group reads.
    pub(in crate::local) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        patterns(&self.spec)
    }

    /// Whether the group reads a topic.
    pub(in crate::local) fn reads(&self, topic: &Topic) -> bool {
        self.patterns().any(|pattern| pattern.matches(topic.as_str()))
    }

    /// Adds a topic to those that the group reads.
    pub(in crate::local) fn add_topic(&self, id: TopicId, name: &Topic, restored: Restored) -> SourceId {
        let mut core = self.core.lock();
        let source = core.machine.add_source(restored);
        core.topics.push(GroupTopic { id, name: name.clone(), is_deleted: false });
        self.waiters.add_source();
        self.changes.lock().add_source(id);
        source
    }

    /// Reads the group's state without changing it.
    pub(in crate::local) fn inspect<T>(&self, look: impl FnOnce(&GroupCore) -> T) -> T {
        look(&self.core.lock())
    }

    /// Locks the group. Only for code that also records the changes, as `act` does.
    pub(super) fn lock(&self) -> RankedGuard<'_, GROUP, GroupCore> {
        self.core.lock()
    }

    /// Counts a verdict on an event that is not leased to the sender of the verdict.
    pub(in crate::local) fn count_stale(&self) {
        self.core.lock().machine.count_stale();
    }

    pub(in crate::local) fn pause(&self, member: MemberId, is_paused: bool) {
        self.core.lock().machine.pause(member, is_paused);
    }

    pub(in crate::local) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    pub(in crate::local) fn set_deleted(&self) {
        self.is_deleted.store(true, Ordering::Release);
    }

    pub(in crate::local) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Starts a new epoch, because leases became void. For a lease of an earlier epoch, the machine must be asked whether it is
    /// still valid.
    pub(in crate::local) fn raise_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The topics that the group reads, by source.
    pub(in crate::local) fn sources(&self) -> Vec<(SourceId, TopicId)> {
        self.inspect(|core| core.live_topics().map(|(source, topic)| (source, topic.id)).collect())
    }
}

/// The topics and patterns that a group reads.
pub(in crate::local) fn patterns(spec: &GroupSpec) -> impl Iterator<Item = &Pattern> {
    std::iter::once(&spec.subscription).chain(&spec.topics)
}
