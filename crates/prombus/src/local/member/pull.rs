//! Pulls events for a member in three steps: reserves seqs under the group's lock, reads and filters the events without the lock,
//! and leases them under the lock again. So a slow disk or a costly filter does not delay other members. A lease begins in the
//! third step, no matter how long the read took.
//!
//! A read may be pending. If nothing was read yet, the pull is pending too, and the member keeps its reservation. The reservation
//! is released when the member leaves or pauses, when the group is moved, or when the caller stops waiting. If some events were
//! read, they are delivered, and the rest of the reservation is given back to the group.
//!
//! On a store that several processes share, the leasing gate (whether this process may lease events) is checked twice: before
//! events are reserved, and before they are leased.

use super::LocalMember;
use super::multi_topic_read::{MultiTopicOutcome, MultiTopicRead};
use super::pull_state::{Pull, UnreadableSeqs, log_missing, note_unreadable};
use crate::backend::{DeliveryBatch, PullLimit};
use crate::delivery::{Millis, Position, ReservedRange};
use crate::engine::Visit;
use crate::error::{GroupError, ReadError};
use crate::local::groups::cell::GroupCore;
use std::cell::Cell;
use std::task::{Context, Poll};

/// The number of seqs that a member with a filter reserves at once.
const SCAN_AHEAD: u32 = 4_096;
/// The maximum number of seqs that a member without a filter reserves at once to pass a gap (seqs whose events were removed).
const GAP_AHEAD: u32 = 65_536;
/// The maximum number of redeliveries in one pull whose events turn out to be unreadable. The pull then reads no further
/// redeliveries.
const FAILED_READS_MAX: usize = 4;
/// How often a pull that finds no events to deliver tries again before it lets other tasks run.
const ROUNDS_MAX: usize = 8;

impl LocalMember {
    pub(super) fn poll_next(
        &self,
        pull: &mut Pull,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        into.clear();
        for round in 0..ROUNDS_MAX {
            self.check()?;
            let reserved = pull.pending.take().or_else(|| self.reserve(pull, limit, round, context));
            let Some(allowed) = reserved else {
                // If the bus was closed or the group was deleted before the waker was registered, the waker would never be
                // called.
                self.check()?;
                pull.rest();
                return Poll::Pending;
            };
            pull.turn = None;
            match self.poll_read(pull, allowed, limit, into, context) {
                Poll::Pending => {
                    into.clear();
                    pull.pending = Some(allowed);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.put_back(pull);
                    into.clear();
                    if let ReadError::UnknownTopic(_) = error {
                        // The topic was deleted after its events were reserved; the group continues with its other topics.
                        continue;
                    }
                    return Poll::Ready(Err(error.into()));
                }
            }
            if self.is_gate_closed() {
                // The gate closed during the read, or while this process was stopped.
                self.put_back(pull);
                into.clear();
                continue;
            }
            if !self.lease(pull, into) {
                // The group was paused during the read.
                self.put_back(pull);
                into.clear();
                continue;
            }
            if !into.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reserves redeliveries and new seqs for the pull. Returns how many of the reserved events may be delivered. Returns `None`
    /// if there is nothing to read: then the member is registered as a waiter, or it was removed from the group.
    fn reserve(&self, pull: &mut Pull, limit: PullLimit, round: usize, context: &Context<'_>) -> Option<u32> {
        // A pull that found only gaps makes a larger reservation in the next round, because passing a gap is cheap, no matter how
        // large it is.
        let has_filter = self.filter.is_any();
        let scan = (has_filter || round > 0).then_some(SCAN_AHEAD);
        let scan = if has_filter { scan } else { scan.map(|scan| (scan << round).min(GAP_AHEAD)) };
        pull.redelivered.clear();
        pull.reserved.clear();
        let waiters = &self.cell.waiters;
        let (seen_durable, is_gate_closed) = (Cell::new(0), Cell::new(false));
        let Pull { redelivered, reserved, topics, share, turn, .. } = pull;
        let reserve = |core: &mut GroupCore, now: Millis| {
            waiters.grant_new_events(&mut core.machine);
            let durable = waiters.durable_generation();
            seen_durable.set(durable);
            is_gate_closed.set(self.is_gate_closed());
            if is_gate_closed.get() {
                return None;
            }
            let allowed =
                core.machine.reserve(self.id, limit.events, scan, now, durable, redelivered, reserved);
            if redelivered.is_empty() && reserved.is_empty() {
                return None;
            }
            topics.clear();
            let sources = redelivered.iter().map(|position| position.source);
            for source in sources.chain(reserved.iter().map(|range| range.source)) {
                let topic = core.topic(source);
                topics.push((topic.id, topic.name.clone()));
            }
            *share = core.machine.share();
            Some(allowed)
        };
        let wait = |core: &GroupCore| {
            if is_gate_closed.get() && core.machine.has_member(self.id) {
                // Registered like members that wait for room in their window, because opening the gate wakes all of these.
                waiters.wait_for_window(self.id, context.waker());
                return self.groups.gate.get().is_none_or(|gate| gate.wait());
            }
            if core.machine.window(self.id) > 0 {
                return waiters.wait_for_events(self.id, turn, seen_durable.get(), context.waker());
            }
            if core.machine.has_member(self.id) {
                waiters.wait_for_window(self.id, context.waker());
            } else {
                self.note_removal();
            }
            true
        };
        self.runtime().act_or_wait(&self.cell, reserve, wait)
    }

    /// Reads the reserved events, within the limits. Unreadable events are not an error; they are recorded in `pull`. Pending if
    /// nothing could be read yet.
    fn poll_read(
        &self,
        pull: &mut Pull,
        allowed: u32,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ReadError>> {
        pull.clear_read();
        let is_pending = self.read_redelivered(pull, limit, into, context)?;
        let is_full = !pull.postponed.is_empty();
        let has_read = !into.is_empty()
            || !pull.dropped_redeliveries.is_empty()
            || !pull.unreadable_redeliveries.is_empty();
        if is_pending && !has_read {
            return Poll::Pending;
        }
        let has_read = has_read || is_full;
        if pull.reserved.len() > 1 {
            let Pull { topic_cursors, reserved, topics, redelivered, unreadable, .. } = pull;
            topic_cursors.begin(reserved, &*pull.engine);
            let topics = &topics[redelivered.len()..];
            let reading = MultiTopicRead {
                filter: &self.filter,
                group: &self.cell.spec.group,
                reserved,
                topics,
                limit,
                allowed,
                share: pull.share,
            };
            let outcome = if is_full {
                Ok(MultiTopicOutcome::Done)
            } else {
                reading.run(topic_cursors, unreadable, into, context)
            };
            let is_pending = matches!(outcome, Ok(MultiTopicOutcome::Pending));
            topic_cursors.end(reserved, is_pending);
            return match outcome? {
                // Pending only if no event was examined. Otherwise the events that were passed over are settled first, so that
                // they are not read again.
                MultiTopicOutcome::Pending if !has_read && !topic_cursors.has_moved(reserved) => {
                    Poll::Pending
                }
                _ => Poll::Ready(Ok(())),
            };
        }
        if pull.reserved.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match self.read_reserved(pull, is_full, allowed, limit, into, context)? {
            // No event of the reservation was examined.
            true if !has_read && pull.read[0].0 + 1 == pull.reserved[0].first_seq => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Reads the reserved redeliveries one by one. Returns whether the read of one of them is pending; that redelivery and the
    /// later ones are then left for the next pull.
    fn read_redelivered(
        &self,
        pull: &mut Pull,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<bool, ReadError> {
        let mut is_pending = false;
        let Pull {
            scanner,
            redelivered,
            read_redeliveries,
            dropped_redeliveries,
            postponed,
            unreadable_redeliveries,
            topics,
            ..
        } = pull;
        for (&position, (topic_id, topic)) in redelivered.iter().zip(topics.iter()) {
            let seq = position.seq;
            let is_full = !into.is_empty() && into.byte_count() >= limit.bytes;
            // After several failed reads the remaining redeliveries are left for the next pull, because a failed read may occupy
            // the disk for seconds.
            if is_pending || is_full || unreadable_redeliveries.len() >= FAILED_READS_MAX {
                postponed.push(position);
                continue;
            }
            let mut is_wanted = false;
            let scanned = scanner.poll_scan(*topic_id, seq, seq, context, &mut |event| {
                is_wanted = self.filter.passes(topic, event);
                if is_wanted {
                    into.push(topic, position, event);
                }
                Visit::Next
            });
            match scanned {
                Poll::Pending => {
                    is_pending = true;
                    postponed.push(position);
                }
                Poll::Ready(Err(error)) if error.is_unreadable() => unreadable_redeliveries.push(position),
                Poll::Ready(scanned) => {
                    scanned?;
                    let list = if is_wanted { &mut *read_redeliveries } else { &mut *dropped_redeliveries };
                    list.push(position);
                }
            }
        }
        Ok(is_pending)
    }

    /// Reads the only reserved range. Returns whether it ended because a read is pending.
    fn read_reserved(
        &self,
        pull: &mut Pull,
        mut is_full: bool,
        allowed: u32,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<bool, ReadError> {
        let Pull { scanner, redelivered, reserved, read, kept, topics, unreadable, .. } = pull;
        let (range, (topic_id, topic)) = (reserved[0], &topics[redelivered.len()]);
        let mut next_seq = range.first_seq;
        let mut is_pending = false;
        while !is_full && next_seq <= range.last_seq {
            let scanned = scanner.poll_scan(*topic_id, next_seq, range.last_seq, context, &mut |event| {
                if !self.filter.passes(topic, event) {
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
            let Poll::Ready(scanned) = scanned else {
                is_pending = true;
                break;
            };
            let Some(scanned) = note_unreadable(scanned, 0, next_seq, range, unreadable)? else { break };
            log_missing(&self.cell.spec.group, topic, scanned);
            if scanned.next_seq <= next_seq {
                break;
            }
            next_seq = scanned.next_seq;
        }
        read.push((next_seq - 1, kept.len()));
        Ok(is_pending)
    }

    /// Leases the events that were read. Returns false, and leases nothing, if the group is paused.
    fn lease(&self, pull: &mut Pull, into: &mut DeliveryBatch) -> bool {
        let leased = self.runtime().act(&self.cell, |core, now| {
            if core.machine.is_paused() {
                return None;
            }
            let leased = &mut pull.leased;
            leased.clear();
            for &position in &pull.postponed {
                core.machine.put_back_redelivery(self.id, position, now);
            }
            for &position in &pull.unreadable_redeliveries {
                core.machine.unreadable_redelivery(self.id, position, now);
            }
            for &position in &pull.dropped_redeliveries {
                core.machine.pass_over_redelivery(self.id, position);
            }
            // A seek or a late ack may have voided reservations while the group was not locked; `hand_out` then returns `None`.
            let read_redeliveries = pull.read_redeliveries.iter();
            leased.extend(
                read_redeliveries.filter_map(|&position| core.machine.hand_out(self.id, position, now)),
            );
            if pull.reserved.len() > 1 {
                self.lease_multi_topic(core, pull, now);
            } else if let (Some(&range), Some(&(read_to, _))) = (pull.reserved.first(), pull.read.first()) {
                let is_valid = core.machine.deliver(self.id, range, read_to, &pull.kept, now, leased);
                self.report_unreadable(core, range, 0, is_valid, &pull.unreadable, now);
            }
            Some((core.machine.last_errors(&pull.leased), now, self.cell.epoch()))
        });
        let Some((last_errors, now, epoch)) = leased else { return false };
        into.lease(&pull.leased, last_errors, now, epoch);
        true
    }

    /// Leases the events that were read from several topics, in the order in which they were read.
    fn lease_multi_topic(&self, core: &mut GroupCore, pull: &mut Pull, now: Millis) {
        let Pull { leased, reserved, topic_cursors, unreadable, .. } = pull;
        let first = leased.len();
        for (at, &range) in reserved.iter().enumerate().rev() {
            let from = leased.len();
            let (read_to, kept) = topic_cursors.part(at);
            let is_valid = core.machine.deliver(self.id, range, read_to, kept, now, leased);
            topic_cursors.set_leases(at, from, leased.len());
            self.report_unreadable(core, range, at, is_valid, unreadable, now);
        }
        topic_cursors.sort(leased, first);
    }

    /// Reports the unreadable seqs of a reservation to the machine. If the reservation is void (`is_valid` is false), reports
    /// nothing, because another member may have reserved the same seqs meanwhile.
    fn report_unreadable(
        &self,
        core: &mut GroupCore,
        range: ReservedRange,
        at: usize,
        is_valid: bool,
        unreadable: &[UnreadableSeqs],
        now: Millis,
    ) {
        for it in unreadable.iter().filter(|it| is_valid && it.reservation == at) {
            let may_pass = self.settings.passes_unreadable;
            core.machine.unreadable(range.source, it.first_seq, it.last_seq, may_pass, now);
        }
    }

    /// Releases the reservation of a pending read, if there is one. The scanner keeps the events that it has already read.
    pub(super) fn release_pending(&self, pull: &mut Pull) {
        if pull.pending.take().is_some() {
            self.put_back(pull);
        }
    }

    /// Gives the reserved events back to the group, so that other members may read them.
    fn put_back(&self, pull: &mut Pull) {
        self.runtime().act(&self.cell, |core, now| {
            for &range in &pull.reserved {
                core.machine.unreserve(self.id, range);
            }
            for &position in &pull.redelivered {
                core.machine.put_back_redelivery(self.id, position, now);
            }
        });
    }
}
