//! Pauses and resumes whole groups. A pause is durable, so it holds until the group is resumed, also after a restart.

use super::cell::GroupCell;
use super::{Groups, Tried, busy_or, with_room};
use crate::deferred_wakes::DeferredWakes;
use crate::engine::StateRecord;
use crate::error::{GroupError, StoreError};
use std::sync::Arc;

impl Groups {
    /// Pauses or resumes a group. Resolves when that is durable.
    pub(in crate::local) async fn pause(
        &self,
        subscription: &str,
        group: &str,
        is_paused: bool,
    ) -> Result<(), GroupError> {
        self.commits.check_open()?;
        let cell = self.registry.find_group(subscription, group)?;
        let generation = with_room(&self.commits, || self.try_pause(&cell, is_paused)).await?;
        self.durable(&cell, generation).await
    }

    /// Pauses or resumes a group, and returns the generation of the record. If the group is already in that state, nothing is
    /// written, and the generation is that of the newest change, which may be a pause that is not durable yet.
    fn try_pause(&self, cell: &Arc<GroupCell>, is_paused: bool) -> Result<Tried<u64>, GroupError> {
        self.commits.check_open()?;
        if cell.is_deleted() {
            return Err(GroupError::Deleted);
        }
        let _deferred = DeferredWakes::enter();
        let written: Result<u64, StoreError> = self.runtime.act_and_append(cell, |core, sending| {
            if core.machine.is_paused() == is_paused {
                return Ok(cell.changes.lock().current_generation());
            }
            let record = StateRecord::Paused { group: cell.number, is_paused };
            let generation = self.runtime.records.append_last(sending, &[], (vec![record], cell), true)?;
            core.machine.pause_all(is_paused);
            Ok(generation)
        });
        let generation = match written {
            Ok(generation) => generation,
            Err(error) => return busy_or(error),
        };
        if !is_paused {
            // The members found no room while the group was paused, and wait for it.
            cell.waiters.wake_windows(None);
        }
        Ok(Tried::Done(generation))
    }
}
