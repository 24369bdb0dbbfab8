//! The age of each group's oldest unsettled event, for metrics.

use super::Groups;
use super::cell::GroupCell;
use super::oldest_unsettled::{CommitTimes, Oldest};
use crate::engine::MayBlock;
use crate::metrics::GroupAge;
use std::collections::HashSet;

impl Groups {
    /// The age of the oldest unsettled event of each group, in the order in which the groups were created.
    pub(in crate::local) fn ages(&self, may_block: MayBlock) -> Vec<GroupAge> {
        let cells = self.registry.groups_by_number();
        let oldest: Vec<Vec<Oldest>> = cells.iter().map(|cell| self.oldest_of(cell)).collect();
        let wanted: HashSet<Oldest> = oldest.iter().flatten().copied().collect();
        let times = self.oldest_unsettled.update(&*self.engine, wanted, may_block);
        let wall = self.runtime.clock.wall_ms();
        let ages = cells.iter().zip(oldest).map(|(cell, oldest)| GroupAge {
            topic: cell.spec.subscription.as_str().to_owned(),
            group: cell.spec.group.as_str().to_owned(),
            age_ms: age_ms(&oldest, &times, wall),
        });
        ages.collect()
    }

    /// The first unsettled event of each topic of a group.
    fn oldest_of(&self, cell: &GroupCell) -> Vec<Oldest> {
        cell.inspect(|core| {
            let oldest = core.live_topics().filter_map(|(source, topic)| {
                let status = core.machine.status(source);
                let above = self.engine.last_seq(topic.id).saturating_sub(status.floor);
                // Retention may have removed events that the group has not reached.
                let seq = (status.floor + 1).max(self.engine.retained_from(topic.id));
                (above > status.settled_above).then_some(Oldest { topic: topic.id, seq })
            });
            oldest.collect()
        })
    }
}

/// The age of the oldest of these events. Zero if none exists; `None` if no commit time is known.
fn age_ms(oldest: &[Oldest], times: &CommitTimes, wall: i64) -> Option<u64> {
    let known = oldest.iter().filter_map(|it| times.get(it));
    match known.clone().flatten().min() {
        Some(commit_ms) => Some(u64::try_from(wall.saturating_sub(*commit_ms)).unwrap_or(0)),
        None => (known.count() == oldest.len()).then_some(0),
    }
}
