//! Reads the events that a pull has reserved in several topics, in the order in which they were committed.
//!
//! Each topic has a cursor that knows the commit time of its next event. The topic whose next event is the oldest is read until
//! the next event of another topic is older. The order is only approximate across pulls: a pull waits neither for events beyond
//! its reservations, nor for topics in which it reserved nothing.

use super::filter::MemberFilter;
use super::pull_state::{UnreadableSeqs, log_missing, note_unreadable};
use super::topic_cursors::{Part, READ_AHEAD_BYTES, TopicCursor, TopicCursors};
use crate::backend::{DeliveryBatch, PullLimit};
use crate::delivery::{Position, ReservedRange};
use crate::engine::{TopicId, Visit};
use crate::error::ReadError;
use prombus_protocol::{GroupName, Topic};
use std::cmp::Reverse;
use std::task::{Context, Poll};

/// Whether a read of several topics is complete.
pub(super) enum MultiTopicOutcome {
    Done,
    /// No event was read, and a read is pending.
    Pending,
}

/// A read of several topics.
pub(super) struct MultiTopicRead<'a> {
    pub(super) filter: &'a MemberFilter,
    pub(super) group: &'a GroupName,
    pub(super) reserved: &'a [ReservedRange],
    pub(super) topics: &'a [(TopicId, Topic)],
    pub(super) limit: PullLimit,
    /// The maximum number of events to read.
    pub(super) allowed: u32,
    /// The maximum length of a reservation in a topic. If a reservation has this length, the topic may have more events.
    pub(super) share: u64,
}

/// How the read of one topic ended.
enum Ended {
    /// The topic was read up to the given commit time. Its next event has this later commit time.
    Before(i64),
    /// The reservation in the topic was read completely.
    Empty,
    /// The topic's next events cannot be read at the moment.
    Unreadable,
    /// A read is pending.
    Pending,
    /// The limits of the pull are reached.
    Full,
}

impl MultiTopicRead<'_> {
    /// Reads in the order of commit times, within the limits.
    pub(super) fn run(
        &self,
        topic_cursors: &mut TopicCursors,
        unreadable: &mut Vec<UnreadableSeqs>,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<MultiTopicOutcome, ReadError> {
        let mut is_pending = false;
        for at in 0..topic_cursors.used {
            let part = &topic_cursors.parts[at];
            let head = part.cursor.as_ref().and_then(|cursor| cursor.head);
            match head.filter(|&(seq, _)| seq == part.next_seq) {
                Some((_, commit_ms)) => topic_cursors.heads.push(Reverse((commit_ms, at))),
                // The commit time of the topic's next event is unknown. This only looks for that event and does not take it,
                // because every commit time is later than `i64::MIN`.
                None => match self.read_to(at, i64::MIN, topic_cursors, unreadable, into, context)? {
                    Ended::Before(commit_ms) => topic_cursors.heads.push(Reverse((commit_ms, at))),
                    Ended::Pending => is_pending = true,
                    Ended::Empty | Ended::Unreadable | Ended::Full => {}
                },
            }
        }
        if is_pending {
            // The first event of a pending topic may be older than those of the others, so no event can be returned yet. The
            // reads of all topics were started above, so they are pending at the same time.
            return Ok(MultiTopicOutcome::Pending);
        }
        while let Some(Reverse((_, at))) = topic_cursors.heads.pop() {
            let to_ms = topic_cursors.heads.peek().map_or(i64::MAX, |Reverse((commit_ms, _))| *commit_ms);
            match self.read_to(at, to_ms, topic_cursors, unreadable, into, context)? {
                Ended::Before(commit_ms) => topic_cursors.heads.push(Reverse((commit_ms, at))),
                // The topic may have events beyond its reservation that are older than the next events of other topics. So the
                // pull ends here.
                Ended::Empty
                    if self.reserved[at].count() == self.share && !topic_cursors.order.is_empty() =>
                {
                    break;
                }
                Ended::Empty | Ended::Unreadable => {}
                Ended::Pending if topic_cursors.order.is_empty() => return Ok(MultiTopicOutcome::Pending),
                Ended::Pending | Ended::Full => break,
            }
        }
        Ok(MultiTopicOutcome::Done)
    }

    /// Reads the reservation in one topic up to a commit time.
    fn read_to(
        &self,
        at: usize,
        to_ms: i64,
        topic_cursors: &mut TopicCursors,
        unreadable: &mut Vec<UnreadableSeqs>,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Result<Ended, ReadError> {
        let (range, (topic_id, topic)) = (self.reserved[at], &self.topics[at]);
        let TopicCursors { parts, order, .. } = topic_cursors;
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
                // If the event is the known head, it has passed the filters before: they are called only one time per event.
                let is_known = known.is_some_and(|(seq, _)| seq == event.seq);
                if !is_known && !self.filter.passes(topic, event) {
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
            log_missing(self.group, topic, scanned);
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
