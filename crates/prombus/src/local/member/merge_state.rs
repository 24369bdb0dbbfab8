//! Where a member's reading of several topics is: a cursor per topic, and the order in which events were read.

use crate::delivery::{Leased, ReservedRange, SourceId};
use crate::engine::{Engine, EventScanner};
use crate::local::groups::cell::TOPICS_SIDE_BY_SIDE;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What a cursor reads ahead; a member has up to [`TOPICS_SIDE_BY_SIDE`] of them.
pub(super) const READ_AHEAD_BYTES: usize = 16 * 1024;
/// With more topics than this, or large events, nothing that was read ahead is kept from one pull to the next: who is slow to
/// pull again would hold it all.
const KEPT_CURSORS: usize = 16;

/// What pulls of several topics use, kept from one to the next.
#[derive(Default)]
pub(super) struct Merge {
    cursors: HashMap<SourceId, TopicCursor, foldhash::fast::RandomState>,
    pub(super) parts: Vec<Part>,
    /// How many of the parts this pull uses.
    pub(super) used: usize,
    /// Commit times of the next events, with their parts.
    pub(super) heads: BinaryHeap<Reverse<(i64, usize)>>,
    /// The part of each event that was read, in order.
    pub(super) order: Vec<usize>,
    sorted: Vec<Leased>,
}

/// Where the reading of a topic is.
pub(super) struct TopicCursor {
    pub(super) scanner: Box<dyn EventScanner>,
    /// The seq and the commit time of the next event that is wanted, if it is known.
    pub(super) head: Option<(u64, i64)>,
    /// It has read an event that is larger than what it reads ahead.
    pub(super) has_large: bool,
}

/// The events read from one reservation.
#[derive(Default)]
pub(super) struct Part {
    pub(super) cursor: Option<TopicCursor>,
    pub(super) next_seq: u64,
    pub(super) kept: Vec<u64>,
    /// Where its leases are among those of the pull.
    leases: (usize, usize),
}

impl Merge {
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

    /// Ends a pull: keeps the cursors, and forgets those of other topics when there are too many. If a read is pending, what was
    /// read ahead is kept for it.
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

    /// Lets go of what was read ahead.
    pub(super) fn rest(&mut self) {
        self.cursors.values_mut().for_each(|cursor| cursor.scanner.rest());
    }

    /// Whether any reservation was read at least in part: events that a filter does not want, or that are gone, are passed.
    pub(super) fn has_moved(&self, reserved: &[ReservedRange]) -> bool {
        self.parts.iter().zip(reserved).any(|(part, range)| part.next_seq > range.first_seq)
    }

    /// Up to which seq a reservation was read, and the seqs that are kept.
    pub(super) fn part(&self, at: usize) -> (u64, &[u64]) {
        let part = &self.parts[at];
        (part.next_seq - 1, &part.kept)
    }

    /// Says which leases are of which part.
    pub(super) fn set_leases(&mut self, part: usize, from: usize, to: usize) {
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
