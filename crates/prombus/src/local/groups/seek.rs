//! Moves groups to other positions: because of a SEEK, because a member takes the group over, or because retention removed
//! events that the group had not settled.

use super::cell::GroupCell;
use super::durable_ticket::GroupRecords;
use super::spec_record::{first_mark, mark_record};
use super::start_position::ResolvedStart;
use super::{Groups, Tried, busy_or, with_room};
use crate::backend::DurableTicket;
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::{MemberId, SourceId};
use crate::engine::{StateRecord, TopicId};
use crate::error::{GroupError, StoreError};
use prombus_protocol::Start;
use std::sync::Arc;

/// The target of a move.
enum SeekTo {
    Start(ResolvedStart),
    /// The group's own floor. Only this member remains in the group.
    Floor {
        only: MemberId,
    },
}

impl Groups {
    /// Moves a group to a start position. Resolves when that is durable.
    pub(in crate::local) async fn seek(
        &self,
        subscription: &str,
        group: &str,
        to: Start,
    ) -> Result<(), GroupError> {
        to.check()?;
        let cell = self.registry.find_group(subscription, group)?;
        loop {
            self.append_earlier_publishes(to).await?;
            let ids: Vec<TopicId> = cell.sources().into_iter().map(|(_, id)| id).collect();
            let to = SeekTo::Start(ResolvedStart::resolve(&*self.engine, &ids, to).await?);
            let sought = with_room(&self.commits, || self.try_seek(&cell, &to)).await?;
            // `None`: a topic was created since the start position was resolved, so it must be resolved again.
            if let Some(generation) = sought {
                return self.durable(&cell, generation).await;
            }
        }
    }

    /// Makes a member the only one, and moves the group back to its floor. Resolves when that is durable.
    pub(in crate::local) async fn take_over(
        &self,
        cell: &Arc<GroupCell>,
        member: MemberId,
    ) -> Result<(), GroupError> {
        let to = SeekTo::Floor { only: member };
        let sought = with_room(&self.commits, || self.try_seek(cell, &to)).await?;
        self.durable(cell, sought.unwrap_or(0)).await
    }

    pub(super) async fn durable(&self, cell: &Arc<GroupCell>, generation: u64) -> Result<(), GroupError> {
        let records =
            GroupRecords::new(Arc::clone(&self.runtime), Arc::clone(&self.commits), Arc::clone(cell));
        DurableTicket::new(Arc::new(records), generation).await?;
        Ok(())
    }

    /// Moves a group, and returns the generation of the record. Returns `None` if a topic was created since the start position
    /// was resolved.
    fn try_seek(&self, cell: &Arc<GroupCell>, to: &SeekTo) -> Result<Tried<Option<u64>>, GroupError> {
        self.commits.check_open()?;
        if cell.is_deleted() {
            return Err(GroupError::Deleted);
        }
        let _deferred = DeferredWakes::enter();
        // While this lock is held, no topic is added to the group.
        let _creation = self.registry.creation();
        let (sources, ids): (Vec<SourceId>, Vec<TopicId>) = cell.sources().into_iter().unzip();
        let floors = match to {
            SeekTo::Start(start) => match start.floors(&*self.engine, &ids) {
                Some(floors) => Some(floors),
                None => return Ok(Tried::Done(None)),
            },
            SeekTo::Floor { .. } => None,
        };
        let sought: Result<u64, StoreError> = self.runtime.act_and_append(cell, |core, sending| {
            cell.waiters.grant_new_events(&mut core.machine);
            let floor = |&source: &SourceId| core.machine.status(source).floor;
            let floors = floors.unwrap_or_else(|| sources.iter().map(floor).collect());
            let record = StateRecord::Sought {
                group: cell.number,
                floors: ids.iter().copied().zip(floors.iter().copied()).collect(),
            };
            let records = vec![record, mark_record(cell.number, &ids, &floors)];
            // This writes the group's earlier changes before the record of the move.
            let generation = self.runtime.records.append_last(sending, &[], (records, cell), true)?;
            for (source, floor) in sources.into_iter().zip(floors) {
                core.machine.seek(source, floor);
                core.machine.marked(source, first_mark(floor), generation);
            }
            if let SeekTo::Floor { only } = to {
                let others = core.machine.members().filter(|other| other != only);
                for other in others.collect::<Vec<_>>() {
                    // `seek` has voided the leases of the member, so no event is redelivered because it leaves.
                    core.machine.leave(other, self.runtime.clock.steady_ms());
                    core.forget_member(other);
                }
            }
            cell.raise_epoch();
            Ok(generation)
        });
        let generation = match sought {
            Ok(generation) => generation,
            Err(error) => return busy_or(error),
        };
        cell.waiters.wake_windows(None);
        if let SeekTo::Floor { .. } = to {
            // Removed members must notice that they were removed.
            cell.waiters.wake_members();
        }
        Ok(Tried::Done(Some(generation)))
    }

    /// Applies retention to a group: if it has not settled all events below `first_seq`, it continues at `first_seq`.
    pub(in crate::local) fn cut_group(&self, cell: &Arc<GroupCell>, source: SourceId, first_seq: u64) {
        let (missed, topic, is_first) = self.runtime.act(cell, |core, _| {
            cell.waiters.grant_new_events(&mut core.machine);
            let missed = core.machine.cut(source, first_seq);
            // Logged only the first time, because a group that lags behind loses events whenever retention is applied.
            let is_first = missed > 0 && core.logged_missed.insert(source);
            (missed, core.topic(source).name.clone(), is_first)
        });
        if is_first {
            tracing::warn!(
                "group {} on {topic}: retention removed {missed} events that the group had not settled; it continues at seq \
                 {first_seq}. Further losses are counted in prombus_events_missed_total and not logged",
                cell.spec.group
            );
        }
    }
}
