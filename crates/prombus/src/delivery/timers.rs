//! The timers of leases and waits.
//!
//! The leases of one pull end together, so they share one timer. A timer is not removed when its lease is settled: it is
//! ignored when it fires, and all stale timers are removed together when most timers are stale. So the timers of leases cost
//! almost nothing.

use super::{Millis, Position, SourceId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The timer of a range of seqs of a topic, whose leases or waits end at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseTimer {
    /// When it fires.
    pub at: Millis,
    /// The topic.
    pub source: SourceId,
    /// The first seq.
    pub first_seq: u64,
    /// The last seq.
    pub last_seq: u64,
}

/// The timers of a group.
#[derive(Debug, Default)]
pub struct Timers {
    /// All timers but the newest, the earliest first.
    heap: BinaryHeap<Reverse<LeaseTimer>>,
    /// The newest timer. If the next seq has the same end, it is added to this timer.
    open: Option<LeaseTimer>,
}

/// Fewer stale timers than this are not worth a sweep.
const STALE_MAX: usize = 1_024;

impl Timers {
    /// Adds a timer for a position.
    pub fn add(&mut self, at: Millis, position: Position) {
        let Position { source, seq } = position;
        if let Some(open) = &mut self.open {
            if open.at == at && open.source == source && open.last_seq + 1 == seq {
                open.last_seq = seq;
                return;
            }
            self.heap.push(Reverse(*open));
        }
        self.open = Some(LeaseTimer { at, source, first_seq: seq, last_seq: seq });
    }

    /// When the next timer fires. It may be stale by then.
    pub fn next_at(&self) -> Option<Millis> {
        let first = self.heap.peek().map(|Reverse(timer)| timer.at);
        let open = self.open.map(|timer| timer.at);
        first.into_iter().chain(open).min()
    }

    /// How many timers there are, stale ones included.
    pub fn count(&self) -> usize {
        self.heap.len() + usize::from(self.open.is_some())
    }

    /// Removes and returns the first due timer, in the order of time, then of position; `None` if no timer is due.
    pub fn pop_due(&mut self, now: Millis) -> Option<LeaseTimer> {
        if let Some(open) = self.open.take_if(|open| open.at <= now) {
            self.heap.push(Reverse(open));
        }
        if self.heap.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            return self.heap.pop().map(|Reverse(timer)| timer);
        }
        None
    }

    /// Whether most timers are stale, so that they should be rebuilt from the unsettled deliveries.
    pub fn needs_sweep(&self, unsettled: usize) -> bool {
        self.heap.len() > 2 * unsettled + STALE_MAX
    }

    /// Replaces all timers.
    pub fn rebuild(&mut self, timers: impl Iterator<Item = (Millis, Position)>) {
        self.heap.clear();
        self.open = None;
        let mut all: Vec<_> = timers.collect();
        all.sort_unstable();
        for (at, position) in all {
            self.add(at, position);
        }
    }
}
