//! Reading several topics side by side, in the order in which their events were committed.
//!
//! Each topic has a cursor that knows the commit time of its next event. The topic whose next event is the oldest is read up to
//! the next event of another one. It is a preference: what a topic has past its reservation, and topics that are not in this
//! pull, are not waited for.

use super::filter::MemberFilter;
use super::merge_state::{Merge, Part, READ_AHEAD_BYTES, TopicCursor};
use super::pull_state::{UnreadableSeqs, note_unreadable, report_gone};
use crate::backend::{DeliveryBatch, PullLimit};
use crate::delivery::{Position, ReservedRange};
use crate::engine::{TopicId, Visit};
use crate::error::ReadError;
use prombus_protocol::{GroupName, Topic};
use std::cmp::Reverse;
use std::task::{Context, Poll};

/// Whether a reading came to its end.
pub(super) enum MergeRead {
    Done,
    /// No event was taken, and a read is pending.
    Pending,
}

/// The reading of several topics.
pub(super) struct MergedReading<'a> {
    pub(super) filter: &'a MemberFilter,
    pub(super) group: &'a GroupName,
    pub(super) reserved: &'a [ReservedRange],
    pub(super) topics: &'a [(TopicId, Topic)],
    pub(super) limit: PullLimit,
    /// How many events it may keep.
    pub(super) allowed: u32,
    /// A reservation of this length may not be all that its topic has.
    pub(super) share: u64,
}

/// How the reading of one of them ended.
enum Ended {
    /// Its next event has this commit time.
    Before(i64),
    /// Nothing is left of its reservation.
    Empty,
    /// It cannot be read further now.
    Unreadable,
    /// A read is pending.
    Pending,
    /// The pull has what it may have.
    Full,
}

impl MergedReading<'_> {
    /// Reads in the order of commit times, as far as the limits allow.
    pub(super) fn run(
        &self,
        merge: &mut Merge,
        unreadable: &mut Vec<UnreadableSeqs>,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<MergeRead, ReadError> {
        let mut is_pending = false;
        for at in 0..merge.used {
            let part = &merge.parts[at];
            let head = part.cursor.as_ref().and_then(|cursor| cursor.head);
            match head.filter(|&(seq, _)| seq == part.next_seq) {
                Some((_, commit_ms)) => merge.heads.push(Reverse((commit_ms, at))),
                // Up to its first event and no further.
                None => match self.read_to(at, i64::MIN, merge, unreadable, into, context)? {
                    Ended::Before(commit_ms) => merge.heads.push(Reverse((commit_ms, at))),
                    Ended::Pending => is_pending = true,
                    Ended::Empty | Ended::Unreadable | Ended::Full => {}
                },
            }
        }
        if is_pending {
            // Its first event may come before those of the others. All are asked for meanwhile.
            return Ok(MergeRead::Pending);
        }
        while let Some(Reverse((_, at))) = merge.heads.pop() {
            let to_ms = merge.heads.peek().map_or(i64::MAX, |Reverse((commit_ms, _))| *commit_ms);
            match self.read_to(at, to_ms, merge, unreadable, into, context)? {
                Ended::Before(commit_ms) => merge.heads.push(Reverse((commit_ms, at))),
                // What it has past its reservation may come before the events of others.
                Ended::Empty if self.reserved[at].count() == self.share && !merge.order.is_empty() => break,
                Ended::Empty | Ended::Unreadable => {}
                Ended::Pending if merge.order.is_empty() => return Ok(MergeRead::Pending),
                Ended::Pending | Ended::Full => break,
            }
        }
        Ok(MergeRead::Done)
    }

    /// Reads one topic up to a commit time.
    fn read_to(
        &self,
        at: usize,
        to_ms: i64,
        merge: &mut Merge,
        unreadable: &mut Vec<UnreadableSeqs>,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<Ended, ReadError> {
        let (range, (topic_id, topic)) = (self.reserved[at], &self.topics[at]);
        let Merge { parts, order, .. } = merge;
        let Part { cursor: Some(TopicCursor { scanner, head, has_large }), next_seq, kept, .. } =
            &mut parts[at]
        else {
            return Ok(Ended::Empty);
        };
        let known = head.take();
        while *next_seq <= range.last_seq {
            let mut is_full = false;
            let scanned = scanner.poll_scan(*topic_id, *next_seq, range.last_seq, context, &mut |event| {
                *has_large |= event.body.len() > READ_AHEAD_BYTES;
                // A filter is asked once about each event.
                let is_known = known.is_some_and(|(seq, _)| seq == event.seq);
                if !is_known && !self.filter.wants(topic, event) {
                    return Visit::Next;
                }
                is_full = order.len() >= self.allowed as usize
                    || (!into.is_empty() && into.byte_count() + event.body.len() > self.limit.bytes);
                if is_full || event.commit_ms > to_ms {
                    *head = Some((event.seq, event.commit_ms));
                    return Visit::Stop;
                }
                into.push(topic, Position { source: range.source, seq: event.seq }, event);
                kept.push(event.seq);
                order.push(at);
                Visit::Next
            });
            let Poll::Ready(scanned) = scanned else { return Ok(Ended::Pending) };
            let Some(scanned) = note_unreadable(scanned, at, *next_seq, range, unreadable)? else {
                return Ok(Ended::Unreadable);
            };
            report_gone(self.group, topic, scanned);
            let has_moved = scanned.next_seq > *next_seq;
            *next_seq = scanned.next_seq.max(*next_seq);
            match *head {
                Some(_) if is_full => return Ok(Ended::Full),
                Some((_, commit_ms)) => return Ok(Ended::Before(commit_ms)),
                None if has_moved => {}
                None => return Ok(Ended::Unreadable),
            }
        }
        Ok(Ended::Empty)
    }
}
