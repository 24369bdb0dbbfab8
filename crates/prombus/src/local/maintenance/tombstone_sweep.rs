//! The progress of the sweep (the search for old tombstones that can be dropped), and the limits of one round.

use crate::clock::Clock;
use crate::delivery::Millis;
use crate::engine::TopicId;

/// The maximum number of tombstones that a round examines, in all topics together.
const ROUND_MAX: usize = 8_000;
/// The number of tombstones that are examined before the time is checked.
pub(super) const SLICE_MAX: usize = 1_000;
/// The time after which a round stops examining tombstones.
const ROUND_MAX_MS: Millis = 500;
/// The time after which the sweep starts again from the beginning, even if no cleaning removed events.
pub(super) const RESTART_MS: Millis = 60_000;

/// The progress of the sweep of a topic's old tombstones.
#[derive(Debug, Default)]
pub(super) struct TombstoneSweep {
    /// Tombstones up to this seq were examined. Those that were not dropped were still needed, or could not be
    /// checked.
    pub(super) after_seq: u64,
    /// When the sweep last started over.
    pub(super) started_at: Millis,
    /// Whether some tombstones could not be checked.
    pub(super) has_failed: bool,
}

impl TombstoneSweep {
    /// Makes the next round start from the beginning and examine all tombstones again.
    pub(super) fn restart(&mut self) {
        self.after_seq = 0;
    }
}

/// The remaining budget of a round.
#[derive(Debug)]
pub(super) struct SweepBudget {
    /// The number of tombstones that the round may still examine.
    pub(super) left: usize,
    /// When the round stops examining tombstones.
    ends_at: Millis,
}

impl SweepBudget {
    pub(super) fn new(now: Millis) -> Self {
        Self { left: ROUND_MAX, ends_at: now.saturating_add(ROUND_MAX_MS) }
    }

    /// Whether the budget is used up, so that tombstones remain for the next round.
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

/// Selects the tombstones of a topic that are old enough to be dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldTombstones {
    pub(super) topic: TopicId,
    /// Tombstones that were committed at this time or before, by the wall clock, are old.
    pub(super) by_ms: i64,
    /// Tombstones up to this seq are old, by the steady clock.
    pub(super) old_seq: u64,
    /// Tombstones after this seq are not dropped, because no snapshot includes them yet.
    pub(super) drop_to_seq: u64,
}
