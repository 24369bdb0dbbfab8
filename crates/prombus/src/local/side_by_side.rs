//! Reading several topics side by side, in the order in which their events were committed.
//!
//! Each topic has a cursor that knows the commit time of its next event. The topic whose next event is the oldest is read up to
//! the next event of another one. It is a preference: what a topic has past its reservation, and topics that are not in this
//! pull, are not waited for.

use super::member::{LocalMember, is_wanted};
use crate::backend::{DeliveryBatch, PullLimit};
use crate::delivery::{Leased, Position, ReservedRange, SourceId};
use crate::error::ReadError;
use crate::store::{Scanner, Store, TopicId, Visit};
use prombus_protocol::Topic;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Topics that a pull reads side by side.
pub(crate) const SIDE_BY_SIDE: usize = 256;
/// What a cursor reads ahead; a member has up to [`SIDE_BY_SIDE`] of them.
const READ_AHEAD_BYTES: usize = 16 * 1024;
/// With more topics than this, or large events, nothing that was read ahead is kept from one pull to the next: who is slow to
/// pull again would hold it all.
const KEPT_CURSORS: usize = 16;

/// What pulls of several topics use, kept from one to the next.
#[derive(Default)]
pub(super) struct Merge {
    cursors: HashMap<SourceId, Cursor, foldhash::fast::RandomState>,
    pub(super) parts: Vec<Part>,
    /// How many of the parts this pull uses.
    used: usize,
    /// Commit times of the next events, with their parts.
    heads: BinaryHeap<Reverse<(i64, usize)>>,
    /// The part of each event that was read, in order.
    order: Vec<usize>,
    sorted: Vec<Leased>,
}

/// Where the reading of a topic is.
struct Cursor {
    scanner: Box<dyn Scanner>,
    /// The seq and the commit time of the next event that is wanted, if it is known.
    head: Option<(u64, i64)>,
    /// It has read an event that is larger than what it reads ahead.
    has_large: bool,
}

/// The events read from one reservation.
#[derive(Default)]
pub(super) struct Part {
    cursor: Option<Cursor>,
    pub(super) next_seq: u64,
    pub(super) kept: Vec<u64>,
    /// Where its leases are among those of the pull.
    leases: (usize, usize),
}

impl Merge {
    /// Begins a pull.
    pub(super) fn begin(&mut self, reserved: &[ReservedRange], store: &dyn Store) {
        self.heads.clear();
        self.order.clear();
        self.used = reserved.len();
        self.parts.resize_with(self.parts.len().max(reserved.len()), Part::default);
        for (part, range) in self.parts.iter_mut().zip(reserved) {
            let cursor = self.cursors.remove(&range.source).unwrap_or_else(|| {
                let mut scanner = store.scanner();
                scanner.read_ahead(READ_AHEAD_BYTES);
                Cursor { scanner, head: None, has_large: false }
            });
            part.cursor = Some(cursor);
            part.next_seq = range.first_seq;
            part.kept.clear();
        }
    }

    /// Ends a pull: keeps the cursors, and forgets those of other topics when there are too many.
    pub(super) fn end(&mut self, reserved: &[ReservedRange]) {
        if self.cursors.len() + reserved.len() > SIDE_BY_SIDE {
            self.cursors.clear();
        }
        let are_many = self.cursors.len() + reserved.len() > KEPT_CURSORS;
        for (part, range) in self.parts.iter_mut().zip(reserved) {
            let Some(mut cursor) = part.cursor.take() else { continue };
            if std::mem::replace(&mut cursor.has_large, false) || are_many {
                cursor.scanner.rest();
            }
            self.cursors.insert(range.source, cursor);
        }
    }

    /// Lets go of what was read ahead.
    pub(super) fn rest(&mut self) {
        self.cursors.values_mut().for_each(|cursor| cursor.scanner.rest());
    }

    /// Says which leases are of which part.
    pub(super) fn leased(&mut self, part: usize, from: usize, to: usize) {
        self.parts[part].leases = (from, to);
    }

    /// Puts leases past `from`, which are part by part, into the order in which their events were read.
    pub(super) fn sort(&mut self, leased: &mut Vec<Leased>, from: usize) {
        self.sorted.clear();
        for &part in &self.order {
            let (next, end) = &mut self.parts[part].leases;
            if next < end {
                self.sorted.push(leased[*next]);
                *next += 1;
            }
        }
        leased.truncate(from);
        leased.append(&mut self.sorted);
    }
}

/// The reading of several topics.
pub(super) struct Reading<'a> {
    pub(super) member: &'a LocalMember,
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
    /// The pull has what it may have.
    Full,
}

impl Reading<'_> {
    /// Reads in the order of commit times, as far as the limits allow.
    pub(super) fn run(
        &self,
        merge: &mut Merge,
        unreadable: &mut Vec<(usize, u64, u64)>,
        into: &mut DeliveryBatch,
    ) -> Result<(), ReadError> {
        for at in 0..merge.used {
            let part = &merge.parts[at];
            let head = part.cursor.as_ref().and_then(|cursor| cursor.head);
            match head.filter(|&(seq, _)| seq == part.next_seq) {
                Some((_, commit_ms)) => merge.heads.push(Reverse((commit_ms, at))),
                // Up to its first event and no further.
                None => {
                    if let Ended::Before(commit_ms) = self.read_to(at, i64::MIN, merge, unreadable, into)? {
                        merge.heads.push(Reverse((commit_ms, at)));
                    }
                }
            }
        }
        while let Some(Reverse((_, at))) = merge.heads.pop() {
            let to_ms = merge.heads.peek().map_or(i64::MAX, |Reverse((commit_ms, _))| *commit_ms);
            match self.read_to(at, to_ms, merge, unreadable, into)? {
                Ended::Before(commit_ms) => merge.heads.push(Reverse((commit_ms, at))),
                // What it has past its reservation may come before the events of others.
                Ended::Empty if self.reserved[at].count() == self.share && !merge.order.is_empty() => break,
                Ended::Empty | Ended::Unreadable => {}
                Ended::Full => break,
            }
        }
        Ok(())
    }

    /// Reads one topic up to a commit time.
    fn read_to(
        &self,
        at: usize,
        to_ms: i64,
        merge: &mut Merge,
        unreadable: &mut Vec<(usize, u64, u64)>,
        into: &mut DeliveryBatch,
    ) -> Result<Ended, ReadError> {
        let (range, (topic_id, topic)) = (self.reserved[at], &self.topics[at]);
        let Merge { parts, order, .. } = merge;
        let Part { cursor: Some(Cursor { scanner, head, has_large }), next_seq, kept, .. } = &mut parts[at]
        else {
            return Ok(Ended::Empty);
        };
        let (group_filter, own_filter) = (self.member.cell.spec.filter.as_ref(), self.member.filter.as_ref());
        let known = head.take();
        while *next_seq <= range.last_seq {
            let mut is_full = false;
            let scanned = scanner.scan(*topic_id, *next_seq, range.last_seq, &mut |event| {
                *has_large |= event.body.len() > READ_AHEAD_BYTES;
                // A filter is asked once about each event.
                let is_known = known.is_some_and(|(seq, _)| seq == event.seq);
                if !is_known && !is_wanted(group_filter, own_filter, topic, event) {
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
            let scanned = match scanned {
                Err(ReadError::Unreadable { last_seq, .. }) => {
                    unreadable.push((at, *next_seq, last_seq.min(range.last_seq)));
                    return Ok(Ended::Unreadable);
                }
                // It is not known which events: hold the whole range.
                Err(ReadError::Io(_)) => {
                    unreadable.push((at, *next_seq, range.last_seq));
                    return Ok(Ended::Unreadable);
                }
                scanned => scanned?,
            };
            if scanned.cleaned > 0 || scanned.corrupt > 0 {
                self.member.report_gone(topic, scanned.cleaned, scanned.corrupt);
            }
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
