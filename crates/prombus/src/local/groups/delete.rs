//! Deleting groups.

use super::cell::GroupCell;
use super::{Groups, Tried, busy_or, with_room};
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::Millis;
use crate::engine::{AppendBatch, StateRecord, TopicId};
use crate::error::GroupError;
use crate::local::registry::Creation;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Groups {
    /// Deletes a group. Resolves when that is durable.
    pub(in crate::local) async fn delete(&self, subscription: &str, group: &str) -> Result<(), GroupError> {
        let cell = self.registry.find_group(subscription, group)?;
        let commit = with_room(&self.commits, || self.try_delete(&cell, None)).await?;
        poll_fn(|context| self.commits.poll_durable(commit, context)).await?;
        Ok(())
    }

    /// Deletes a group. If `empty_since` is set, deletes it only if it has had no members since that time. Returns
    /// the commit of the deletion.
    pub(super) fn try_delete(
        &self,
        cell: &Arc<GroupCell>,
        empty_since: Option<Millis>,
    ) -> Result<Tried<u64>, GroupError> {
        let _deferred = DeferredWakes::enter();
        let creation = self.registry.creation();
        self.try_delete_with(cell, empty_since, &creation)
    }

    pub(in crate::local) fn try_delete_with(
        &self,
        cell: &Arc<GroupCell>,
        empty_since: Option<Millis>,
        creation: &Creation,
    ) -> Result<Tried<u64>, GroupError> {
        // This lock excludes joins. A member that joins afterwards finds that the group is deleted.
        let core = cell.lock();
        let is_wanted = empty_since.is_some_and(|seen| {
            core.machine.member_count() > 0 || cell.empty_since.load(Ordering::Acquire) != seen
        });
        if is_wanted || cell.is_deleted() {
            return Err(GroupError::Deleted);
        }
        let records = [StateRecord::Deleted { group: cell.number }];
        let commit = match self.engine.append(&AppendBatch::of_records(&records), &mut Vec::new()) {
            Ok(appended) => appended.commit,
            Err(error) => return busy_or(error),
        };
        self.runtime.records.appended(commit);
        cell.set_deleted();
        cell.raise_epoch();
        let topics: Vec<TopicId> = core.live_topics().map(|(_, topic)| topic.id).collect();
        drop(core);
        self.registry.remove_group(cell, &topics, creation);
        cell.waiters.wake_all();
        Ok(Tried::Done(commit))
    }
}
