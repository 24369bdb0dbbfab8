//! The state of a member's reads of several topics: a cursor per topic, and the order in which events were read.

use crate::delivery::{Leased, ReservedRange, SourceId};
use crate::engine::{Engine, EventScanner};
use crate::local::groups::cell::TOPICS_SIDE_BY_SIDE;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The size of the read-ahead of a cursor. It is small, because a member has up to [`TOPICS_SIDE_BY_SIDE`] cursors.
pub(super) const READ_AHEAD_BYTES: usize = 16 * 1024;
/// With more cursors than this, or with large events, no read-ahead is kept between pulls, because a member that is slow to pull
/// again would hold all of it in memory.
const KEPT_CURSORS: usize = 16;

/// The state of pulls from several topics, reused by the next pull.
#[derive(Default)]
pub(super) struct TopicCursors {
    /// The cursors, except those that the current pull uses (see [`Part::cursor`]).
    cursors: HashMap<SourceId, TopicCursor, foldhash::fast::RandomState>,
    /// One part per reservation of the pull, followed by parts that this pull does not use.
    pub(super) parts: Vec<Part>,
    /// The number of parts that this pull uses.
    pub(super) used: usize,
    /// The commit time of the next event of each part, with the index of the part.
    pub(super) heads: BinaryHeap<Reverse<(i64, usize)>>,
    /// For each event that was read, in order: the index of its part.
    pub(super) order: Vec<usize>,
    /// Scratch space of [`Self::sort`].
    sorted: Vec<Leased>,
}

/// The position of the reads of a topic.
pub(super) struct TopicCursor {
    pub(super) scanner: Box<dyn EventScanner>,
    /// The seq and the commit time of the next event, if that event is known and has passed the filters.
    pub(super) head: Option<(u64, i64)>,
    /// Whether the cursor has read an event that is larger than its read-ahead.
    pub(super) has_large: bool,
}

/// The events that were read from one reservation.
#[derive(Default)]
pub(super) struct Part {
    /// The cursor of the topic, during a pull.
    pub(super) cursor: Option<TopicCursor>,
    /// The first seq that was not read.
    pub(super) next_seq: u64,
    /// The seqs that passed the filters.
    pub(super) kept: Vec<u64>,
    /// The range of this part's leases in the list of the pull's leases.
    leases: (usize, usize),
}

impl TopicCursors {
    /// Begins a pull.
    pub(super) fn begin(&mut self, reserved: &[ReservedRange], engine: &dyn Engine) {
        self.heads.clear();
        self.order.clear();
        self.used = reserved.len();
        self.parts.resize_with(self.parts.len().max(reserved.len()), Part::default);
        for (part, range) in self.parts.iter_mut().zip(reserved) {
            let cursor = self.cursors.remove(&range.source).unwrap_or_else(|| {
                let mut scanner = engine.scanner();
                scanner.read_ahead(READ_AHEAD_BYTES);
                TopicCursor { scanner, head: None, has_large: false }
            });
            part.cursor = Some(cursor);
            part.next_seq = range.first_seq;
            part.kept.clear();
        }
    }

    /// Ends a pull. Keeps the cursors of its topics, and removes those of other topics if there are too many. If a read is
    /// pending, the read-ahead is kept.
    pub(super) fn end(&mut self, reserved: &[ReservedRange], is_pending: bool) {
        if self.cursors.len() + reserved.len() > TOPICS_SIDE_BY_SIDE {
            self.cursors.clear();
        }
        let are_many = self.cursors.len() + reserved.len() > KEPT_CURSORS;
        for (part, range) in self.parts.iter_mut().zip(reserved) {
            let Some(mut cursor) = part.cursor.take() else { continue };
            let has_large = std::mem::replace(&mut cursor.has_large, false);
            if (has_large || are_many) && !is_pending {
                cursor.scanner.rest();
            }
            self.cursors.insert(range.source, cursor);
        }
    }

    /// Frees the read-ahead.
    pub(super) fn rest(&mut self) {
        self.cursors.values_mut().for_each(|cursor| cursor.scanner.rest());
    }

    /// Whether any reservation was read at least in part, even if all events that were read were rejected by a filter, or were
    /// removed.
    pub(super) fn has_moved(&self, reserved: &[ReservedRange]) -> bool {
        self.parts.iter().zip(reserved).any(|(part, range)| part.next_seq > range.first_seq)
    }

    /// The seq up to which a reservation was read, and the seqs that passed the filters.
    pub(super) fn part(&self, at: usize) -> (u64, &[u64]) {
        let part = &self.parts[at];
        (part.next_seq - 1, &part.kept)
    }

    /// Records which leases belong to a part.
    pub(super) fn set_leases(&mut self, part: usize, from: usize, to: usize) {
        self.parts[part].leases = (from, to);
    }

    /// Sorts the leases from `from` on, which are grouped by part, into the order in which their events were read.
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
