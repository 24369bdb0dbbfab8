//! The commit times of the oldest unsettled events of groups, for metrics.
//!
//! The commit time of an event has to be looked up in the engine. Two limits keep that cheap with many groups: the times are
//! remembered from one call to the next, so a group that has not moved costs no lookup, and groups at the same event share one;
//! and a call makes at most [`LOOKUPS_MAX`] lookups, for at most [`LOOKUP_TIME_MAX`]. The next calls look up the rest.

use crate::engine::{Engine, MayBlock, TopicId};
use crate::local::lock_order::{LEAF, RankedMutex};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of lookups per call.
const LOOKUPS_MAX: usize = 2_000;
/// The time after which a call starts no more lookups.
const LOOKUP_TIME_MAX: Duration = Duration::from_millis(500);
/// The number of lookups that wait for a database at the same time.
const LOOKUPS_SIDE_BY_SIDE: usize = 64;

/// The first event of a topic that a group has not settled. Retention and compaction may have removed the event with exactly this
/// seq; then the next one that is kept counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Oldest {
    pub(super) topic: TopicId,
    pub(super) seq: u64,
}

/// Commit times by event; `None` if compaction removed the event and all later ones.
pub(super) type CommitTimes = HashMap<Oldest, Option<i64>>;

/// The commit times of the oldest unsettled events, as of the last call.
#[derive(Default)]
pub(in crate::local) struct OldestUnsettledTimes(RankedMutex<LEAF, Remembered>);

#[derive(Clone, Default)]
struct Remembered {
    times: Arc<CommitTimes>,
    /// The number of lookups since a call last made all of them. The next call starts after these, so that all groups get their
    /// turn.
    looked_up: usize,
}

impl OldestUnsettledTimes {
    /// Returns the commit times of these events, as far as they are known, and forgets all others.
    pub(super) fn update(
        &self,
        engine: &dyn Engine,
        wanted: HashSet<Oldest>,
        may_block: MayBlock,
    ) -> Arc<CommitTimes> {
        let Remembered { times: known, looked_up } = self.0.lock().clone();
        let mut times = CommitTimes::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for oldest in wanted {
            match known.get(&oldest) {
                Some(&Some(commit_ms)) => drop(times.insert(oldest, Some(commit_ms))),
                // A later event may have been published meanwhile.
                Some(None) | None => missing.push(oldest),
            }
        }
        let mut asked = missing.len().min(LOOKUPS_MAX);
        if asked < missing.len() {
            // The order must be the same in each call.
            missing.sort_unstable();
            let start = looked_up % missing.len();
            missing.rotate_left(start);
        }
        asked = look_up(engine, &missing[..asked], &mut times, may_block);
        let times = Arc::new(times);
        let looked_up = if asked < missing.len() { looked_up.wrapping_add(asked) } else { 0 };
        *self.0.lock() = Remembered { times: Arc::clone(&times), looked_up };
        times
    }
}

/// Looks up the commit times of events until the time is up, and returns how many events were looked up.
fn look_up(engine: &dyn Engine, missing: &[Oldest], times: &mut CommitTimes, may_block: MayBlock) -> usize {
    let started = Instant::now();
    let mut asked = 0;
    // An engine that reads its own files does so within the call, so several lookups at once gain nothing.
    let side_by_side = if engine.capabilities().reads_locally { 1 } else { LOOKUPS_SIDE_BY_SIDE };
    for some in missing.chunks(side_by_side) {
        if started.elapsed() > LOOKUP_TIME_MAX {
            break;
        }
        let lookups: Vec<_> = some.iter().map(|it| engine.head_at_or_after(it.topic, it.seq)).collect();
        for (oldest, lookup) in some.iter().zip(lookups) {
            // An event that cannot be read has no known age.
            if let Ok(head) = lookup.wait(may_block) {
                times.insert(*oldest, head.map(|head| head.commit_ms));
            }
        }
        asked += some.len();
    }
    asked
}
