//! Deletions of keys that were kept for long enough go, a bounded number per round of maintenance.
//!
//! A tombstone stays as long as an older event of its key is on disk: without it that event would come back when the map is
//! rebuilt. Such tombstones are not looked at again before cleaning removed something, so they do not delay later ones.

use super::Local;
use super::states::TopicState;
use crate::clock::Clock;
use crate::delivery::Millis;
use crate::store::TopicId;
use parking_lot::Mutex;

/// Tombstones that are looked at in a round, in all topics together.
const ROUND_MAX: usize = 8_000;
/// Tombstones that are looked at before the time is checked.
const SLICE_MAX: usize = 1_000;
/// A round stops looking at tombstones after this time.
const ROUND_MAX_MS: Millis = 500;
/// Everything is looked at again after this time, whatever is known.
const RESTART_MS: Millis = 60_000;

/// How far the old tombstones of a topic were looked at.
#[derive(Debug, Default)]
pub(super) struct TombstoneSweep {
    /// Tombstones up to this seq were looked at; those that are left could not go.
    after_seq: u64,
    started_at: Millis,
    /// Some of them could not be looked at.
    has_failed: bool,
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
    left: usize,
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

    fn take(&mut self, count: usize, clock: &dyn Clock) {
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

impl Local {
    /// Drops old tombstones of a topic that nothing needs any more. Returns how many.
    pub(super) fn drop_tombstones(
        &self,
        old: &OldTombstones,
        state: &Mutex<TopicState>,
        sweep: &mut TombstoneSweep,
        budget: &mut SweepBudget,
    ) -> u64 {
        let now = self.clock.steady_ms();
        if now.saturating_sub(sweep.started_at) >= RESTART_MS {
            sweep.restart();
        }
        if sweep.after_seq == 0 {
            sweep.started_at = now;
        }
        let mut dropped = 0;
        while !budget.is_used_up() && !self.is_closed() {
            let limit = SLICE_MAX.min(budget.left);
            let mut slice = state.lock().old_tombstones(sweep.after_seq, old.by_ms, old.old_seq, limit);
            slice.truncate(slice.partition_point(|&(seq, _)| seq <= old.to_seq));
            if let Some(&(last_seq, _)) = slice.last() {
                sweep.after_seq = last_seq;
                let are_needed = self.store.have_keys_before(old.topic, &slice);
                sweep.has_failed |= are_needed.iter().any(Result::is_err);
                let gone = slice.iter().zip(&are_needed).filter(|(_, needed)| matches!(needed, Ok(false)));
                let gone: Vec<u64> = gone.map(|(&(seq, _), _)| seq).collect();
                dropped += gone.len() as u64;
                state.lock().drop_tombstones(gone.into_iter());
            }
            if slice.len() < limit {
                // What could not be read is tried again in a later round, after everything else had its turn.
                if std::mem::take(&mut sweep.has_failed) {
                    sweep.restart();
                }
                break;
            }
            budget.take(slice.len(), &*self.clock);
        }
        dropped
    }
}
