//! Deletes groups that have had no members for a certain time: `expireMs` of the group, or else the setting `group_expire_ms`.

use super::cell::GroupCell;
use super::{Groups, Tried};
use crate::backend::GroupSpec;
use crate::delivery::Millis;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The wait before the deletion of a group is tried again if it failed.
const EXPIRE_RETRY_MS: Millis = 1_000;

impl Groups {
    /// How long a group may be without members: the value that its creator set, or else the default. `None` means indefinitely.
    fn expires_after(&self, cell: &GroupCell) -> Option<Millis> {
        cell.spec.expire_ms.or(self.expire_ms)
    }

    /// Records that a group has no members from this time on, and schedules its deletion. Does nothing if the group never
    /// expires.
    pub(in crate::local) fn start_expiry(&self, cell: &Arc<GroupCell>, now: Millis) {
        if let Some(after) = self.expires_after(cell) {
            cell.empty_since.store(now, Ordering::Release);
            self.runtime.timer.arm(cell, now.saturating_add(after));
        }
    }

    /// Deletes a group if it has had no members for too long. Returns whether it is deleted.
    pub(super) fn expire(&self, cell: &Arc<GroupCell>, now: Millis) -> bool {
        let Some(after) = self.expires_after(cell) else { return false };
        let empty_since = cell.empty_since.load(Ordering::Acquire);
        let due = empty_since.saturating_add(after);
        if due > now {
            if due < u64::MAX {
                self.runtime.timer.arm(cell, due);
            }
            return false;
        }
        match self.try_delete(cell, Some(empty_since)) {
            Ok(Tried::Done(_)) => {
                let GroupSpec { subscription, group, .. } = &cell.spec;
                tracing::info!(
                    "group {group} on {}: deleted because it had no members",
                    subscription.as_str()
                );
                true
            }
            // The engine has no room, or a member has just joined.
            Ok(Tried::Busy) | Err(_) => {
                let is_gone = cell.is_deleted();
                if !is_gone {
                    self.runtime.timer.arm(cell, now + EXPIRE_RETRY_MS);
                }
                is_gone
            }
        }
    }

    /// Does the work of the timer for one group: handles expired leases and delays that have ended, and deletes the group if it
    /// has expired.
    pub(in crate::local) fn advance_timers(&self, cell: &Arc<GroupCell>, now: Millis) {
        if self.expire(cell, now) {
            return;
        }
        let has_work = self.runtime.act(cell, |core, _| {
            core.machine.advance(now);
            cell.waiters.grant_new_events(&mut core.machine);
            core.machine.has_work()
        });
        // Leases that expired have made room in the windows of members.
        cell.waiters.wake_windows(None);
        if has_work {
            // A member that was woken before may have stopped waiting, so all members are woken.
            cell.waiters.wake_members();
        }
    }
}
