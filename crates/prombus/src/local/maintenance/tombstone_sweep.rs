//! How far old tombstones were looked at, and how many a round looks at.

use crate::clock::Clock;
use crate::delivery::Millis;
use crate::engine::TopicId;

/// Tombstones that are looked at in a round, in all topics together.
const ROUND_MAX: usize = 8_000;
/// Tombstones that are looked at before the time is checked.
pub(super) const SLICE_MAX: usize = 1_000;
/// A round stops looking at tombstones after this time.
const ROUND_MAX_MS: Millis = 500;
/// Everything is looked at again after this time, whatever is known.
pub(super) const RESTART_MS: Millis = 60_000;

/// How far the old tombstones of a topic were looked at.
#[derive(Debug, Default)]
pub(super) struct TombstoneSweep {
    /// Tombstones up to this seq were looked at; those that are left could not go.
    pub(super) after_seq: u64,
    pub(super) started_at: Millis,
    /// Some of them could not be looked at.
    pub(super) has_failed: bool,
}

impl TombstoneSweep {
    /// Looks at all of them again in the next round.
    pub(super) fn restart(&mut self) {
        self.after_seq = 0;
    }
}

/// What a round may still do.
#[derive(Debug)]
pub(super) struct SweepBudget {
    pub(super) left: usize,
    ends_at: Millis,
}

impl SweepBudget {
    pub(super) fn new(now: Millis) -> Self {
        Self { left: ROUND_MAX, ends_at: now.saturating_add(ROUND_MAX_MS) }
    }

    /// Tombstones are left for the next round.
    pub(super) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    pub(super) fn take(&mut self, count: usize, clock: &dyn Clock) {
        self.left -= count.min(self.left);
        if clock.steady_ms() >= self.ends_at {
            self.left = 0;
        }
    }
}

/// Which tombstones of a topic are old enough to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldTombstones {
    pub(super) topic: TopicId,
    /// Committed at this time or before, by the wall clock ...
    pub(super) by_ms: i64,
    /// ... or up to this seq, by the steady clock.
    pub(super) old_seq: u64,
    /// None past this seq: snapshots do not have those yet.
    pub(super) to_seq: u64,
}
