//! Waits until groups are idle: all their events are settled, and none is leased or waits for redelivery.
//!
//! A caller registers with each group and then looks at it. Every change of a group wakes its callers, which look again, so there
//! is no polling.

use super::Groups;
use super::cell::GroupCell;
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
        poll_fn(|context| wait.poll(context)).await
    }

    /// Whether a group has settled all events that are durable now.
    fn is_idle(&self, cell: &GroupCell) -> bool {
        cell.inspect(|core| {
            let counts = core.machine.counts();
            let is_settled = core.live_topics().all(|(source, topic)| {
                let status = core.machine.status(source);
                self.engine.last_seq(topic.id) <= status.floor + status.settled_above
            });
            is_settled && counts.leased == 0 && counts.waiting == 0
        })
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
        match self.cells.iter().all(|cell| self.groups.is_idle(cell)) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl Drop for IdleWait<'_> {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.waiters.stop_waiting_for_idle(self.number);
        }
    }
}
