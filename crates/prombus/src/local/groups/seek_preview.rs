//! Computes what a seek would do, without doing it.

use super::Groups;
use super::cell::{GroupCell, GroupCore};
use super::start_position::ResolvedStart;
use crate::backend::SeekPreview;
use crate::delivery::{SettledSeqs, SourceId, UnsettledState};
use crate::engine::TopicId;
use crate::error::GroupError;
use prombus_protocol::Start;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Groups {
    /// What a seek of a group to this position would do now.
    pub(in crate::local) async fn preview_seek(
        &self,
        subscription: &str,
        group: &str,
        to: Start,
    ) -> Result<SeekPreview, GroupError> {
        self.commits.check_open()?;
        to.check()?;
        let cell = self.registry.find_group(subscription, group)?;
        loop {
            self.append_earlier_publishes(to).await?;
            let ids: Vec<TopicId> = cell.sources().into_iter().map(|(_, id)| id).collect();
            let start = ResolvedStart::resolve(&*self.engine, &ids, to).await?;
            let sources = cell.sources();
            let ids: Vec<TopicId> = sources.iter().map(|&(_, id)| id).collect();
            // `None`: a topic was created since the start position was resolved, so it must be resolved again.
            let Some(floors) = start.floors(&*self.engine, &ids) else { continue };
            let moves: Vec<(SourceId, TopicId, u64)> =
                sources.into_iter().zip(floors).map(|((source, id), floor)| (source, id, floor)).collect();
            let mut preview = self.runtime.act(&cell, |core, now| {
                cell.waiters.grant_new_events(&mut core.machine);
                core.machine.advance(now);
                self.count_moves(core, &moves)
            });
            let floors = moves.iter().map(|&(_, id, floor)| (id, floor)).collect();
            preview.cursor = self.cursor_at(subscription, floors).await?;
            preview.is_exact = self.has_every_seq(&cell, &ids).await?;
            return Ok(preview);
        }
    }

    fn count_moves(&self, core: &GroupCore, moves: &[(SourceId, TopicId, u64)]) -> SeekPreview {
        let mut preview = SeekPreview::default();
        for &(source, id, floor) in moves {
            let (redeliver, skip) = redelivered_and_skipped(core.machine.settled(source), floor);
            preview.redeliver += redeliver;
            preview.skip += skip;
            preview.lag += self.engine.last_seq(id).saturating_sub(floor);
        }
        let leased = core.machine.unsettled().filter(|(_, it)| it.state == UnsettledState::Leased);
        preview.leases = leased.count() as u64;
        preview
    }

    /// Whether every seq of these topics has an event that the group receives. Otherwise counts of seqs are upper bounds.
    async fn has_every_seq(&self, cell: &Arc<GroupCell>, topics: &[TopicId]) -> Result<bool, GroupError> {
        // The group receives only some of the events if it has a filter, or if events are addressed to other groups.
        if cell.spec.filter.is_some() || self.runtime.has_addressees.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let last_seqs: Vec<u64> = topics.iter().map(|&topic| self.engine.last_seq(topic)).collect();
        let usage = self.engine.usage(topics.to_vec()).await?;
        for ((&topic, usage), last_seq) in topics.iter().zip(usage).zip(last_seqs) {
            let Some(first_seq) = self.engine.first_seq(topic).await? else { continue };
            let seq_count = (last_seq + 1).saturating_sub(first_seq);
            let later = self.engine.last_seq(topic).saturating_sub(last_seq);
            // More events than seqs: some are below the first seq, and may hide that others are missing.
            if !(seq_count..=seq_count + later).contains(&usage.unwrap_or_default().events) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// For a move of a group to `floor`: how many settled seqs are above it, and how many unsettled ones are not.
fn redelivered_and_skipped(settled: &SettledSeqs, floor: u64) -> (u64, u64) {
    let old_floor = settled.floor();
    let in_reach = |first: u64, last: u64| (last + 1).saturating_sub(first);
    let above: u64 = settled.above().map(|(first, last)| in_reach(first.max(floor + 1), last)).sum();
    let below: u64 = settled.above().map(|(first, last)| in_reach(first, last.min(floor))).sum();
    (old_floor.saturating_sub(floor) + above, floor.saturating_sub(old_floor) - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_seqs_above_the_floor_are_redelivered_and_unsettled_ones_below_it_skipped() {
        let mut settled = SettledSeqs::up_to(10);
        settled.insert(13, 15);
        settled.insert(20, 20);
        let expected = [(0, (14, 0)), (10, (4, 0)), (12, (4, 2)), (14, (2, 2)), (19, (1, 6)), (30, (0, 16))];
        for (floor, counts) in expected {
            assert_eq!(redelivered_and_skipped(&settled, floor), counts, "floor {floor}");
        }
    }
}
