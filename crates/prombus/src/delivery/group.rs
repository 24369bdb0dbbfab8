//! The state of a group, and functions that read it. The functions that change it are in files named after the behaviour.
//!
//! A seq is granted (fresh), then reserved by a member that reads it, then leased to that member. If a filter drops its
//! event, or the event was removed, the seq is settled instead of leased. Seqs that are reserved but not delivered become
//! fresh again. A redelivery is reserved, read and leased in the same way.

use super::change::Changes;
use super::counters::{GroupCounters, SourceStatus, UnsettledCounts};
use super::give_up::GiveUp;
use super::last_error::{ErrorBudget, LastErrors};
use super::lease::{Leased, Unsettled, UnsettledMap, UnsettledState};
use super::lease_mark::MARK_AHEAD;
use super::member::{Member, MemberId};
use super::settled::SettledSeqs;
use super::source::Source;
use super::timers::Timers;
use super::{Millis, Position, SourceId};
use prombus_protocol::RedeliveryReason;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A consumer group.
#[derive(Debug, Default)]
pub struct Group {
    pub(super) sources: Vec<Source>,
    pub(super) members: BTreeMap<MemberId, Member>,
    /// The number of the member that joins next.
    pub(super) next_member: u64,
    /// Events that were leased at least once, perhaps before a restart, and are not settled.
    pub(super) unsettled: UnsettledMap,
    /// How many of the `unsettled` events are leased.
    pub(super) leased_count: usize,
    /// How many fresh seqs members have reserved.
    pub(super) reserved_count: u64,
    /// Unsettled events that are due, in the order in which they became due. May contain events that are not due any more.
    pub(super) due: VecDeque<Position>,
    /// Topics with fresh seqs, in rotation.
    pub(super) active: VecDeque<SourceId>,
    pub(super) timers: Timers,
    pub(super) changes: Changes,
    /// Events with a failed or started attempt in `changes`. The attempt has no generation yet (see [`gate`](Self::gate)).
    pub(super) ungated: Vec<Position>,
    /// Topics whose newest lease mark is in `changes`. The mark has no generation yet.
    pub(super) ungated_marks: Vec<SourceId>,
    /// Whether a member has begun to wait for a lease mark since the last call of `take_mark_awaited`.
    pub(super) is_mark_awaited: bool,
    /// How many seqs ahead of the leases the lease marks are recorded.
    pub(super) mark_ahead: u64,
    /// The most topics that a pull reserves from, if more than one has fresh seqs.
    pub(super) side_by_side: usize,
    /// The maximum number of seqs that the last such pull could reserve in each topic.
    pub(super) share: u64,
    /// Events to give up, which the caller has not taken yet.
    pub(super) given_up: Vec<GiveUp>,
    /// Events whose dead letter was postponed, and when they are reported again.
    pub(super) put_off: Vec<(Millis, GiveUp)>,
    pub(super) counters: GroupCounters,
    /// Randomizes backoffs, so that different groups do not retry together.
    pub(super) jitter: u64,
    /// When unreadable events are retried next; `Millis::MAX` for never.
    pub(super) retry_reads_at: Millis,
    /// The number of unsettled events that are unreadable.
    pub(super) unreadable_unsettled: usize,
    pub(super) last_errors: LastErrors,
    /// Whether the whole group is paused: no member gets events.
    pub(super) is_paused: bool,
}

impl Group {
    /// A group without topics and members. `jitter` is any number; it should differ between groups.
    pub fn new(jitter: u64) -> Self {
        let (mark_ahead, retry_reads_at) = (MARK_AHEAD, Millis::MAX);
        Self { jitter, mark_ahead, retry_reads_at, side_by_side: 1, ..Self::default() }
    }

    /// Lets a pull reserve from up to this many topics, so that the events of these topics can be delivered in the order of
    /// their commit times.
    #[must_use]
    pub fn with_topics_side_by_side(mut self, topics: usize) -> Self {
        self.side_by_side = topics.max(1);
        self
    }

    /// Records lease marks this many seqs, at least two, ahead of the leases.
    #[must_use]
    pub fn with_mark_ahead(mut self, seqs: u64) -> Self {
        self.mark_ahead = seqs.max(2);
        self
    }

    /// Accounts the memory for nack reasons against a budget that groups share.
    #[must_use]
    pub fn with_error_budget(mut self, budget: ErrorBudget) -> Self {
        self.last_errors = LastErrors::new(budget);
        self
    }

    /// The reasons of the previous nacks for these leases, in order. Leases without a reason are left out.
    pub fn last_errors(&self, leased: &[Leased]) -> Vec<(Position, Arc<str>)> {
        if self.last_errors.is_empty() {
            return Vec::new();
        }
        let nacked = leased.iter().filter(|lease| lease.reason == Some(RedeliveryReason::Nacked));
        nacked.filter_map(|lease| Some((lease.position, self.last_errors.get(lease.position)?))).collect()
    }

    /// How many topics the group has.
    pub fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// A topic's state.
    pub fn status(&self, source: SourceId) -> SourceStatus {
        let source = &self.sources[source.0 as usize];
        SourceStatus {
            floor: source.settled.floor(),
            settled_above: source.settled.above_count(),
            granted_to: source.granted_to,
        }
    }

    /// Removes an event from the unsettled ones, and from its member's deliveries in flight.
    #[inline]
    pub(super) fn forget(&mut self, position: Position) -> Option<Unsettled> {
        let unsettled = self.remove_unsettled(position)?;
        if unsettled.state == UnsettledState::Leased {
            self.release(unsettled.holder);
        }
        Some(unsettled)
    }

    /// Removes an event from the unsettled ones. The lease counts are not changed.
    #[inline]
    pub(super) fn remove_unsettled(&mut self, position: Position) -> Option<Unsettled> {
        let unsettled = self.unsettled.remove(&position)?;
        self.unreadable_unsettled -= usize::from(unsettled.is_unreadable);
        self.last_errors.remove(position);
        Some(unsettled)
    }

    /// Decrements the lease counts, because a lease of this member has ended.
    #[inline]
    pub(super) fn release(&mut self, holder: MemberId) {
        self.leased_count -= 1;
        if let Some(member) = self.members.get_mut(&holder) {
            member.in_flight -= 1;
        }
    }

    /// Whether there may be events for a member that can take more. False while the group is paused.
    pub fn has_work(&self) -> bool {
        !self.is_paused && (!self.active.is_empty() || !self.due.is_empty())
    }

    /// How many events are unsettled.
    pub fn counts(&self) -> UnsettledCounts {
        UnsettledCounts { leased: self.leased_count, waiting: self.unsettled.len() - self.leased_count }
    }

    /// All unsettled deliveries, in no particular order.
    pub fn unsettled(&self) -> impl Iterator<Item = (Position, &Unsettled)> {
        self.unsettled.iter().map(|(&position, unsettled)| (position, unsettled))
    }

    /// The settled seqs of a topic.
    pub fn settled(&self, source: SourceId) -> &SettledSeqs {
        &self.sources[source.0 as usize].settled
    }

    /// The counters.
    pub fn counters(&self) -> GroupCounters {
        self.counters
    }

    /// The changes to record. When the caller takes them, it calls [`gate`](Self::gate) with the generation of the record
    /// that contains them. Events whose failed or started attempts are among the changes are not delivered before that
    /// generation is durable.
    pub fn changes_mut(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// Notes that the changes that were just taken go into the record of this generation. Returns whether events wait until
    /// that record is durable.
    pub fn gate(&mut self, generation: u64) -> bool {
        self.gate_marks(generation);
        let has_failures = !self.ungated.is_empty();
        for position in self.ungated.drain(..) {
            if let Some(unsettled) = self.unsettled.get_mut(&position) {
                unsettled.gate = generation;
            }
        }
        has_failures
    }
}
