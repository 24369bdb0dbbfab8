//! A member at work: pulling and settling.
//!
//! A pull goes in three steps: reserve under the group's lock, read and filter without it, lease under it again. So a slow disk
//! or a costly filter holds up nobody else.

use super::cell::{Core, GroupCell};
use super::side_by_side::{Merge, Reading};
use super::{Aftermath, Handle};
use crate::backend::{
    BoxFuture, DeliveryBatch, DeliveryItem, Durability, DurableTicket, EventFilter, EventView, Membership,
    PullLimit, SettleOutcome, Verdict,
};
use crate::delivery::{Leased, MemberId, MemberSettings, Millis, Position, ReservedRange, Sender, Settling};
use crate::error::{GroupError, ReadError, Unavailable};
use crate::store::{Scanner, StoredEvent, TopicId, Visit};
use parking_lot::Mutex;
use prombus_protocol::limits::MAX_REASON_BYTES;
use prombus_protocol::{Body, CursorPosition, Filter, Topic};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// So many seqs a member with a filter looks at in one go.
const SCAN_AHEAD: u32 = 4_096;
/// So many at most one without.
const GAP_AHEAD: u32 = 65_536;
/// This many redeliveries may be unreadable in one pull.
const FAILED_READS_MAX: usize = 4;
/// So often a pull that finds nothing goes on before it lets others run.
const ROUNDS_MAX: usize = 8;

pub(crate) struct LocalMember {
    /// Keeps the bus open.
    handle: Arc<Handle>,
    pub(super) cell: Arc<GroupCell>,
    id: MemberId,
    settings: MemberSettings,
    pub(super) filter: Option<EventFilter>,
    pull: Mutex<Pull>,
    /// What tickets wait with.
    records: Arc<Records>,
    is_gone: AtomicBool,
    /// Another member took the group over, and this one has found out.
    is_taken_over: AtomicBool,
}

/// What pulls use, kept from one to the next.
struct Pull {
    scanner: Box<dyn Scanner>,
    leased: Vec<Leased>,
    reserved: Vec<ReservedRange>,
    /// What was read of each reserved range: up to where, and how many are kept.
    read: Vec<(u64, usize)>,
    kept: Vec<u64>,
    /// Redeliveries that nobody gets.
    dropped: Vec<Position>,
    /// Redeliveries that do not fit into this pull.
    too_many: Vec<Position>,
    /// Redeliveries that are unreadable.
    unreadable_leases: Vec<Position>,
    /// Unreadable seqs of reservations: the place of the reservation, the first seq, the last.
    unreadable: Vec<(usize, u64, u64)>,
    /// The topics of what was reserved.
    topics: Vec<(TopicId, Topic)>,
    merge: Merge,
    /// A reservation of this length may not be all that its topic has.
    share: u64,
}

impl LocalMember {
    pub(crate) fn new(
        handle: Arc<Handle>,
        cell: Arc<GroupCell>,
        id: MemberId,
        settings: MemberSettings,
        filter: Option<EventFilter>,
    ) -> Self {
        let pull = Pull {
            scanner: handle.local.store.scanner(),
            leased: Vec::new(),
            reserved: Vec::new(),
            read: Vec::new(),
            kept: Vec::new(),
            dropped: Vec::new(),
            too_many: Vec::new(),
            unreadable_leases: Vec::new(),
            unreadable: Vec::new(),
            topics: Vec::new(),
            merge: Merge::default(),
            share: 0,
        };
        let records = Arc::new(Records { local: Arc::clone(&handle.local), cell: Arc::clone(&cell) });
        let (is_gone, is_taken_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let pull = Mutex::new(pull);
        Self { handle, cell, id, settings, filter, pull, records, is_gone, is_taken_over }
    }

    fn check(&self) -> Result<(), GroupError> {
        if self.cell.is_deleted.load(Ordering::Acquire) {
            return Err(GroupError::Deleted);
        }
        if self.handle.local.is_closed() || self.is_gone.load(Ordering::Acquire) {
            return Err(Unavailable::Closed.into());
        }
        if self.is_taken_over.load(Ordering::Acquire) {
            return Err(GroupError::TakenOver);
        }
        Ok(())
    }

    fn has_filter(&self) -> bool {
        self.filter.is_some() || self.cell.spec.filter.is_some()
    }

    /// Takes leases and reservations, and answers how many of the reserved events it may have; `None` when there is nothing and
    /// the member is queued, or was removed.
    fn reserve(&self, pull: &mut Pull, limit: PullLimit, round: usize, context: &Context<'_>) -> Option<u32> {
        let local = &self.handle.local;
        let now = local.clock.steady_ms();
        // What found nothing but gaps goes on in larger steps: a gap costs little to pass, whatever its size.
        let scan = (self.has_filter() || round > 0).then_some(SCAN_AHEAD);
        let scan = if self.has_filter() { scan } else { scan.map(|scan| (scan << round).min(GAP_AHEAD)) };
        pull.leased.clear();
        pull.reserved.clear();
        let mut core = self.cell.core.lock();
        loop {
            self.cell.grant_noticed(&mut core);
            let durable = self.cell.durable_generation();
            let (leased, reserved) = (&mut pull.leased, &mut pull.reserved);
            let allowed = core.machine.reserve(self.id, limit.events, scan, now, durable, leased, reserved);
            if !leased.is_empty() || !reserved.is_empty() {
                pull.topics.clear();
                let sources = leased.iter().map(|lease| lease.position.source);
                let sources = sources.chain(reserved.iter().map(|range| range.source));
                for source in sources {
                    let topic = &core.topics[source.0 as usize];
                    pull.topics.push((topic.id, topic.name.clone()));
                }
                pull.share = core.machine.share();
                let aftermath = local.write_down(&self.cell, &mut core);
                drop(core);
                local.follow_up(&self.cell, aftermath);
                return Some(allowed);
            }
            let aftermath = local.write_down(&self.cell, &mut core);
            if !aftermath.is_empty() {
                drop(core);
                local.follow_up(&self.cell, aftermath);
                core = self.cell.core.lock();
                continue;
            }
            if core.machine.window(self.id) == 0 {
                if core.machine.has_member(self.id) {
                    self.cell.wait_for_window(self.id, context.waker());
                } else if !self.is_gone.load(Ordering::Acquire) {
                    self.is_taken_over.store(true, Ordering::Release);
                }
                return None;
            }
            if self.cell.wait(self.id, durable, context.waker()) {
                return None;
            }
        }
    }

    /// Reads what was reserved, as far as the limits allow. Unreadable events are noted and are not an error.
    fn read(
        &self,
        pull: &mut Pull,
        allowed: u32,
        limit: PullLimit,
        into: &mut DeliveryBatch,
    ) -> Result<(), ReadError> {
        let Pull { scanner, leased, reserved, read, kept, dropped, too_many, topics, merge, .. } = pull;
        let (unreadable, unreadable_leases) = (&mut pull.unreadable, &mut pull.unreadable_leases);
        let group_filter = self.cell.spec.filter.as_ref();
        let is_wanted = |topic: &Topic, event: &StoredEvent<'_>| {
            is_wanted(group_filter, self.filter.as_ref(), topic, event)
        };
        read.clear();
        kept.clear();
        dropped.clear();
        too_many.clear();
        unreadable.clear();
        unreadable_leases.clear();
        for (lease, (topic_id, topic)) in leased.iter().zip(topics.iter()) {
            let Position { seq, .. } = lease.position;
            let is_full = !into.is_empty() && into.byte_count() >= limit.bytes;
            // A failed read may take the disk seconds: the rest is for the next pull.
            if is_full || unreadable_leases.len() >= FAILED_READS_MAX {
                too_many.push(lease.position);
                continue;
            }
            let mut is_there = false;
            let scanned = scanner.scan(*topic_id, seq, seq, &mut |event| {
                is_there = is_wanted(topic, event);
                if is_there {
                    into.push(topic, lease.position, event);
                }
                Visit::Next
            });
            match scanned {
                Err(error) if error.is_unreadable() => {
                    unreadable_leases.push(lease.position);
                    continue;
                }
                scanned => scanned?,
            };
            if !is_there {
                dropped.push(lease.position);
            }
        }
        let mut is_full = !too_many.is_empty();
        if reserved.len() > 1 {
            let topics = &topics[leased.len()..];
            merge.begin(reserved, &*self.handle.local.store);
            let reading = Reading { member: self, reserved, topics, limit, allowed, share: pull.share };
            let merged = if is_full { Ok(()) } else { reading.run(merge, unreadable, into) };
            merge.end(reserved);
            return merged;
        }
        for (at, (range, (topic_id, topic))) in reserved.iter().zip(&topics[leased.len()..]).enumerate() {
            let kept_before = kept.len();
            let mut next_seq = range.first_seq;
            while !is_full && next_seq <= range.last_seq {
                let scanned = scanner.scan(*topic_id, next_seq, range.last_seq, &mut |event| {
                    if !is_wanted(topic, event) {
                        return Visit::Next;
                    }
                    is_full = kept.len() >= allowed as usize
                        || (!into.is_empty() && into.byte_count() + event.body.len() > limit.bytes);
                    if is_full {
                        return Visit::Stop;
                    }
                    into.push(topic, Position { source: range.source, seq: event.seq }, event);
                    kept.push(event.seq);
                    Visit::Next
                });
                let scanned = match scanned {
                    Err(ReadError::Unreadable { last_seq, .. }) => {
                        unreadable.push((at, next_seq, last_seq.min(range.last_seq)));
                        break;
                    }
                    // It is not known which events: hold the whole range.
                    Err(ReadError::Io(_)) => {
                        unreadable.push((at, next_seq, range.last_seq));
                        break;
                    }
                    scanned => scanned?,
                };
                if scanned.cleaned > 0 || scanned.corrupt > 0 {
                    self.report_gone(topic, scanned.cleaned, scanned.corrupt);
                }
                if scanned.next_seq <= next_seq {
                    break;
                }
                next_seq = scanned.next_seq;
            }
            read.push((next_seq - 1, kept.len() - kept_before));
        }
        Ok(())
    }

    pub(super) fn report_gone(&self, topic: &Topic, cleaned: u64, corrupt: u64) {
        let group = &self.cell.spec.group;
        if cleaned > 0 {
            // Newer events of the same keys stand in their place.
            tracing::debug!(
                "group {group} on {topic}: {cleaned} events were cleaned away before it got them"
            );
        }
        if corrupt > 0 {
            tracing::error!("group {group} on {topic}: {corrupt} damaged events are left out");
        }
    }

    /// Turns what was read into leases.
    fn lease(&self, pull: &mut Pull, into: &mut DeliveryBatch) {
        let local = &self.handle.local;
        let now = local.clock.steady_ms();
        let mut core = self.cell.core.lock();
        let Pull { leased, reserved, read, kept, dropped, too_many, unreadable, unreadable_leases, .. } =
            pull;
        let merge = &mut pull.merge;
        for &position in too_many.iter() {
            core.machine.take_back_lease(self.id, position, now);
        }
        // They are the last of the leases.
        leased.truncate(leased.len() - too_many.len());
        for &position in unreadable_leases.iter() {
            core.machine.unreadable_lease(self.id, position, now);
            leased.retain(|lease| lease.position != position);
        }
        for &position in dropped.iter() {
            core.machine.pass_over_leased(self.id, position);
            leased.retain(|lease| lease.position != position);
        }
        // A seek may have made void what was leased before the lock was given up.
        leased.retain(|lease| core.machine.is_leased_to(self.id, lease.position));
        let mut from = 0;
        if reserved.len() > 1 {
            self.lease_merged(&mut core, merge, reserved, unreadable, now, leased);
        }
        let mut unreadable = unreadable.iter().peekable();
        for (at, (&range, &(read_to, count))) in reserved.iter().zip(read.iter()).enumerate() {
            let kept = &kept[from..from + count];
            let is_valid = core.machine.deliver(self.id, range, read_to, kept, now, leased);
            from += count;
            // A void reservation says nothing: its seqs may be with another member by now.
            if let Some(&(_, first_seq, last_seq)) =
                unreadable.next_if(|(of, ..)| *of == at).filter(|_| is_valid)
            {
                let may_pass = self.settings.passes_unreadable;
                core.machine.unreadable(range.source, first_seq, last_seq, may_pass, now);
            }
        }
        let aftermath = local.write_down(&self.cell, &mut core);
        let has_more = core.machine.has_work();
        let epoch = self.cell.epoch.load(Ordering::Acquire);
        let last_errors = core.machine.last_errors(leased);
        drop(core);
        into.lease(leased, last_errors, now, epoch);
        local.follow_up(&self.cell, aftermath);
        if has_more {
            local.call(&self.cell);
        }
    }

    /// Turns what was read of several topics into leases, in the order in which it was read.
    fn lease_merged(
        &self,
        core: &mut Core,
        merge: &mut Merge,
        reserved: &[ReservedRange],
        unreadable: &[(usize, u64, u64)],
        now: Millis,
        leased: &mut Vec<Leased>,
    ) {
        let first = leased.len();
        for (at, &range) in reserved.iter().enumerate().rev() {
            let from = leased.len();
            let part = &merge.parts[at];
            let is_valid = core.machine.deliver(self.id, range, part.next_seq - 1, &part.kept, now, leased);
            merge.leased(at, from, leased.len());
            for &(_, first_seq, last_seq) in unreadable.iter().filter(|(of, ..)| is_valid && *of == at) {
                let may_pass = self.settings.passes_unreadable;
                core.machine.unreadable(range.source, first_seq, last_seq, may_pass, now);
            }
        }
        merge.sort(leased, first);
    }

    /// Reading failed: nobody got anything, and others may try.
    fn put_back(&self, pull: &mut Pull) {
        let local = &self.handle.local;
        let now = local.clock.steady_ms();
        let mut core = self.cell.core.lock();
        for &range in &pull.reserved {
            core.machine.unreserve(self.id, range);
        }
        for lease in &pull.leased {
            core.machine.take_back_lease(self.id, lease.position, now);
        }
        let aftermath = local.write_down(&self.cell, &mut core);
        let has_more = core.machine.has_work();
        drop(core);
        local.follow_up(&self.cell, aftermath);
        if has_more {
            local.call(&self.cell);
        }
    }

    fn depart(&self, how: impl FnOnce(&mut Core, MemberId, u64)) -> u64 {
        if self.is_gone.swap(true, Ordering::AcqRel) {
            return 0;
        }
        let local = &self.handle.local;
        let now = local.clock.steady_ms();
        let mut core = self.cell.core.lock();
        how(&mut core, self.id, now);
        core.labels.remove(&self.id);
        core.names.remove(&self.id);
        self.cell.stop_waiting(self.id);
        let aftermath = local.write_down(&self.cell, &mut core);
        let generation = self.cell.delta.lock().current_generation();
        let has_more = core.machine.has_work();
        if core.machine.member_count() == 0 {
            local.deserted(&self.cell, now);
        }
        drop(core);
        local.follow_up(&self.cell, aftermath);
        if has_more {
            local.call(&self.cell);
        }
        generation
    }

    fn ticket(&self, generation: u64) -> DurableTicket {
        DurableTicket::new(Arc::clone(&self.records) as Arc<dyn Durability>, generation)
    }
}

/// The start of a text, no longer than this, in whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Whether the group and the member want an event. A filter that panics wants it: better delivered than lost.
#[inline]
pub(super) fn is_wanted(
    group: Option<&Filter>,
    own: Option<&EventFilter>,
    topic: &Topic,
    event: &StoredEvent<'_>,
) -> bool {
    let key = || event.key.and_then(|key| std::str::from_utf8(key).ok());
    if group.is_some_and(|filter| !filter.matches(key(), &Body::new(event.body))) {
        return false;
    }
    own.is_none_or(|filter| {
        let answer = catch_unwind(AssertUnwindSafe(|| filter(&EventView { topic, event })));
        answer.unwrap_or_else(|_| {
            tracing::error!("the filter of a subscription to {topic} panicked at seq {}", event.seq);
            true
        })
    })
}

impl Membership for LocalMember {
    fn poll_pull(
        &self,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        into.clear();
        let mut pull = self.pull.lock();
        for round in 0..ROUNDS_MAX {
            self.check()?;
            let Some(allowed) = self.reserve(&mut pull, limit, round, context) else {
                // Closed or deleted in between: nobody would wake us.
                self.check()?;
                pull.scanner.rest();
                pull.merge.rest();
                return Poll::Pending;
            };
            if let Err(error) = self.read(&mut pull, allowed, limit, into) {
                self.put_back(&mut pull);
                into.clear();
                if let ReadError::UnknownTopic(_) = error {
                    // Deleted since its events were reserved; the group goes on with its other topics.
                    continue;
                }
                return Poll::Ready(Err(error.into()));
            }
            self.lease(&mut pull, into);
            if !into.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn settle(
        &self,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> DurableTicket {
        let local = &self.handle.local;
        if local.is_closed() {
            outcomes.extend(verdicts.iter().map(|_| SettleOutcome::Stale));
            return DurableTicket::failed(Unavailable::Closed);
        }
        let generation = local.settle(&self.cell, Sender::Member(self.id), verdicts, outcomes);
        self.ticket(generation)
    }

    fn count_stale(&self) {
        self.cell.core.lock().machine.count_stale();
    }

    fn now_ms(&self) -> Millis {
        self.handle.local.clock.steady_ms()
    }

    fn is_live(&self, item: &DeliveryItem, batch: &DeliveryBatch) -> bool {
        // A seek makes all leases void; the deletion of one topic leaves those of the others.
        let is_leased = || self.cell.core.lock().machine.is_leased_to(self.id, item.position);
        self.handle.local.clock.steady_ms() < item.deadline()
            && (batch.epoch() == self.cell.epoch.load(Ordering::Acquire) || is_leased())
    }

    fn cursor(&self) -> Option<CursorPosition> {
        let spec = &self.cell.spec;
        self.handle.local.cursor(spec.subscription.as_str(), spec.group.as_str()).ok().flatten()
    }

    fn pause(&self, is_paused: bool) {
        self.cell.core.lock().machine.pause(self.id, is_paused);
        if !is_paused {
            self.cell.wake_full(Some(self.id));
        }
    }

    fn hold(&self, is_held: bool) {
        let local = &self.handle.local;
        let now = local.clock.steady_ms();
        let mut core = self.cell.core.lock();
        if is_held {
            core.machine.hold(self.id);
        } else {
            core.machine.unhold(self.id, now);
        }
        let aftermath = local.write_down(&self.cell, &mut core);
        drop(core);
        local.follow_up(&self.cell, aftermath);
    }

    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        let local = Arc::clone(&self.handle.local);
        Box::pin(super::groups::take_over(local, Arc::clone(&self.cell), self.id))
    }

    fn leave(&self) -> DurableTicket {
        let generation = self.depart(|core, id, now| core.machine.leave(id, now));
        self.ticket(generation)
    }

    fn lose(&self) {
        self.depart(|core, id, now| core.machine.lose(id, now));
    }
}

impl Drop for LocalMember {
    fn drop(&mut self) {
        self.lose();
    }
}

impl std::fmt::Debug for LocalMember {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LocalMember({} of {}, {:?})", self.id.0, self.cell.spec.group, self.settings)
    }
}

/// The records of a group, for those who wait for them.
pub(crate) struct Records {
    pub(crate) local: Arc<super::Local>,
    pub(crate) cell: Arc<GroupCell>,
}

impl Durability for Records {
    fn poll_generation(&self, generation: u64, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        if self.cell.durable_generation() >= generation {
            return Poll::Ready(Ok(()));
        }
        self.local.flusher.demand(&*self.local.store, &*self.local.clock);
        if !self.cell.await_generation(generation, context.waker()) {
            return Poll::Ready(Ok(()));
        }
        // Looked at after the waker is in its place.
        match self.local.watch.unavailable() {
            Some(reason) => Poll::Ready(Err(reason.clone())),
            None if self.cell.is_refused(generation) => Poll::Ready(Err(Unavailable::StorageFull)),
            None => Poll::Pending,
        }
    }
}

impl super::Local {
    /// Applies verdicts; answers the generation of records that they are part of.
    pub(crate) fn settle(
        &self,
        cell: &Arc<GroupCell>,
        sender: Sender,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> u64 {
        if cell.is_deleted.load(Ordering::Acquire) {
            outcomes.extend(verdicts.iter().map(|_| SettleOutcome::Stale));
            return 0;
        }
        let now = self.clock.steady_ms();
        let mut core = cell.core.lock();
        core.machine.advance(now);
        let settling = |settling| match settling {
            Settling::Counted => SettleOutcome::Counted,
            Settling::Stale => SettleOutcome::Stale,
        };
        let mut freed = false;
        for &(position, verdict) in verdicts {
            let outcome = match verdict {
                Verdict::Ack => settling(core.machine.ack(sender, position)),
                Verdict::Nack { delay_ms, reason } => {
                    let reason = reason.map(|text| cut(text, MAX_REASON_BYTES));
                    settling(core.machine.nack(sender, position, delay_ms, reason, now))
                }
                Verdict::GiveUp { reason } => {
                    let reason = reason.map(|text| cut(text, MAX_REASON_BYTES));
                    settling(core.machine.nack_dead(sender, position, reason))
                }
                Verdict::Release => match sender {
                    Sender::Member(member) if core.machine.is_leased_to(member, position) => {
                        core.machine.give_back_lease(member, position, now);
                        SettleOutcome::Counted
                    }
                    _ => SettleOutcome::Stale,
                },
                Verdict::Extend { extend_ms } => {
                    match core.machine.extend(sender, position, extend_ms, now) {
                        Some(deadline) => SettleOutcome::Extended(deadline - now),
                        None => SettleOutcome::Stale,
                    }
                }
            };
            freed |= outcome == SettleOutcome::Counted;
            outcomes.push(outcome);
        }
        let aftermath: Aftermath = self.write_down(cell, &mut core);
        let has_more = core.machine.has_work();
        drop(core);
        self.follow_up(cell, aftermath);
        // After the dead letters: a last nack is durable when its letter is.
        let generation = cell.delta.lock().current_generation();
        if freed {
            let holder = match sender {
                Sender::Member(member) => Some(member),
                Sender::LastHolder => None,
            };
            cell.wake_full(holder);
        }
        if has_more {
            self.call(cell);
        }
        generation
    }
}
