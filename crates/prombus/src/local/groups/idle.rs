//! Waits until groups are idle: all their events are settled, none is leased or waits for redelivery, and all of that is durable.
//! So the dead letters of their events can be read.
//!
//! A caller registers with each group and then looks at it. Every change of a group wakes its callers, which look again, so there
//! is no polling.

use super::Groups;
use super::cell::GroupCell;
use super::durable_ticket::GroupRecords;
use crate::backend::Durability as _;
use crate::error::GroupError;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

/// The numbers of callers, to tell their wakers apart.
static NEXT_CALLER: AtomicU64 = AtomicU64::new(0);

/// A caller that waits for groups. Dropping it removes its wakers.
struct IdleWait<'a> {
    groups: &'a Groups,
    cells: Vec<Arc<GroupCell>>,
    number: u64,
}

impl Groups {
    /// Resolves when a group is idle; without a subscription, when all groups of this name are idle at the same time.
    pub(in crate::local) async fn wait_idle(
        &self,
        subscription: Option<&str>,
        group: &str,
    ) -> Result<(), GroupError> {
        let cells = match subscription {
            Some(subscription) => vec![self.registry.find_group(subscription, group)?],
            None => self.registry.groups_by_number(),
        };
        let named = |cell: &Arc<GroupCell>| cell.spec.group.as_str() == group;
        let cells: Vec<_> = cells.into_iter().filter(named).collect();
        if cells.is_empty() {
            return Err(GroupError::NoSuchGroup { group: group.to_owned() });
        }
        let wait = IdleWait { groups: self, cells, number: NEXT_CALLER.fetch_add(1, Ordering::Relaxed) };
        poll_fn(|context| wait.poll(context)).await?;
        for cell in &wait.cells {
            let generation = cell.changes.lock().current_generation();
            let records =
                GroupRecords::new(Arc::clone(&self.runtime), Arc::clone(&self.commits), Arc::clone(cell));
            poll_fn(|context| records.poll_generation(generation, context)).await?;
        }
        Ok(())
    }

    /// The number of events that are durable now in the topics of a group; `None` if the group has not settled all of them.
    fn settled_events(&self, cell: &GroupCell) -> Option<u64> {
        cell.inspect(|core| {
            let counts = core.machine.counts();
            if counts.leased > 0 || counts.waiting > 0 {
                return None;
            }
            core.live_topics().try_fold(0, |sum, (source, topic)| {
                let status = core.machine.status(source);
                let last_seq = self.engine.last_seq(topic.id);
                (last_seq <= status.floor + status.settled_above).then_some(sum + last_seq)
            })
        })
    }

    /// The numbers of settled events of groups that are idle; `None` if one of them is not.
    fn all_settled(&self, cells: &[Arc<GroupCell>]) -> Option<Vec<u64>> {
        cells.iter().map(|cell| self.settled_events(cell)).collect()
    }
}

impl IdleWait<'_> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<(), GroupError>> {
        // Registers before it looks: a change after the look finds the waker.
        for cell in &self.cells {
            cell.waiters.wait_for_idle(self.number, context.waker());
        }
        let commits = &self.groups.commits;
        commits.check_open()?;
        if let Some(reason) = commits.unavailable() {
            return Poll::Ready(Err(reason.clone().into()));
        }
        if self.cells.iter().any(|cell| cell.is_deleted()) {
            return Poll::Ready(Err(GroupError::Deleted));
        }
        let Some(settled) = self.groups.all_settled(&self.cells) else { return Poll::Pending };
        // The groups are looked at one after the other: meanwhile, the handler of one may have published to another. If a second
        // look finds the same, all groups were idle between the two.
        if self.cells.len() > 1 && self.groups.all_settled(&self.cells) != Some(settled) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for IdleWait<'_> {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.waiters.stop_waiting_for_idle(self.number);
        }
    }
}
