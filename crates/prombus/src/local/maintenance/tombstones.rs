//! Drops tombstones (deletions of keys) that are old enough, a bounded number per round.
//!
//! A tombstone is needed as long as an older event of its key is stored: without the tombstone, that event would count as the
//! newest of its key when the map is rebuilt. A tombstone that is still needed is not examined again in the next round, but
//! only after a cleaning has removed events, or when the sweep starts again after a minute, so it does not delay later
//! tombstones.

use super::Maintenance;
use super::tombstone_sweep::{OldTombstones, RESTART_MS, SLICE_MAX, SweepBudget, TombstoneSweep};
use crate::local::latest_by_key::TopicState;
use parking_lot::Mutex;

impl Maintenance {
    /// Drops old tombstones of a topic that are not needed any more. Returns their number.
    pub(super) async fn drop_tombstones(
        &self,
        old: &OldTombstones,
        state: &Mutex<TopicState>,
        sweep: &mut TombstoneSweep,
        budget: &mut SweepBudget,
    ) -> u64 {
        let clock = &self.reading.clock;
        let now = clock.steady_ms();
        if now.saturating_sub(sweep.started_at) >= RESTART_MS {
            sweep.restart();
        }
        if sweep.after_seq == 0 {
            sweep.started_at = now;
        }
        let mut dropped = 0;
        while !budget.is_used_up() && !self.reading.commits.is_closed() {
            let limit = SLICE_MAX.min(budget.left);
            let mut slice = state.lock().old_tombstones(sweep.after_seq, old.by_ms, old.old_seq, limit);
            slice.truncate(slice.partition_point(|&(seq, _)| seq <= old.drop_to_seq));
            if let Some(&(last_seq, _)) = slice.last() {
                sweep.after_seq = last_seq;
                let are_needed = self.reading.engine.have_keys_before(old.topic, slice.clone()).await;
                let are_needed = are_needed.unwrap_or_else(|error| vec![Err(error); slice.len()]);
                sweep.has_failed |= are_needed.iter().any(Result::is_err);
                let gone = slice.iter().zip(&are_needed).filter(|(_, needed)| matches!(needed, Ok(false)));
                let gone: Vec<u64> = gone.map(|(&(seq, _), _)| seq).collect();
                dropped += gone.len() as u64;
                state.lock().drop_tombstones(gone.into_iter());
            }
            if slice.len() < limit {
                // All old tombstones were examined. If some could not be checked, the next round starts from the beginning.
                if std::mem::take(&mut sweep.has_failed) {
                    sweep.restart();
                }
                break;
            }
            budget.take(slice.len(), &**clock);
        }
        dropped
    }
}
