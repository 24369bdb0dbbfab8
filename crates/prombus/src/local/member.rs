//! A member of a group: pulls, settles, pauses and leaves.

mod filter;
mod multi_topic_read;
mod pull;
mod pull_state;
mod topic_cursors;

use super::groups::act::GroupRuntime;
use super::groups::cell::{GroupCell, GroupCore};
use super::groups::settle::settle;
use super::groups::{GroupRecords, Groups};
use crate::backend::{
    BoxFuture, DeliveryBatch, DeliveryItem, DurableTicket, EventFilter, Membership, PullLimit, SettleOutcome,
    Verdict,
};
use crate::delivery::{MemberId, MemberSettings, Millis, Position, Sender};
use crate::error::{GroupError, Unavailable};
use filter::MemberFilter;
use parking_lot::Mutex;
use prombus_protocol::{Addressee, CursorPosition};
use pull_state::Pull;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

pub(super) struct LocalMember {
    /// Keeps the bus open.
    _bus: Arc<dyn Any + Send + Sync>,
    groups: Arc<Groups>,
    cell: Arc<GroupCell>,
    id: MemberId,
    settings: MemberSettings,
    filter: MemberFilter,
    /// The state of pulls, reused by the next pull.
    pull: Mutex<Pull>,
    records: Arc<GroupRecords>,
    /// Whether the member has left or was lost.
    is_gone: AtomicBool,
    /// Whether this member has noticed that another member has taken the group over.
    is_taken_over: AtomicBool,
}

impl LocalMember {
    pub(super) fn new(
        bus: Arc<dyn Any + Send + Sync>,
        groups: Arc<Groups>,
        cell: Arc<GroupCell>,
        id: MemberId,
        settings: MemberSettings,
        filter: Option<EventFilter>,
    ) -> Self {
        let records =
            GroupRecords::new(Arc::clone(&groups.runtime), Arc::clone(&groups.commits), Arc::clone(&cell));
        Self {
            _bus: bus,
            pull: Mutex::new(Pull::new(Arc::clone(&groups.engine))),
            filter: MemberFilter {
                addressee: Addressee::new(cell.spec.subscription.as_str(), cell.spec.group.as_str()),
                group: cell.spec.filter.clone(),
                own: filter,
            },
            groups,
            cell,
            id,
            settings,
            records: Arc::new(records),
            is_gone: AtomicBool::new(false),
            is_taken_over: AtomicBool::new(false),
        }
    }

    fn runtime(&self) -> &GroupRuntime {
        &self.groups.runtime
    }

    fn check(&self) -> Result<(), GroupError> {
        if self.cell.is_deleted() {
            return Err(GroupError::Deleted);
        }
        if self.groups.commits.is_closed() || self.is_gone.load(Ordering::Acquire) {
            return Err(Unavailable::Closed.into());
        }
        if self.is_taken_over.load(Ordering::Acquire) {
            return Err(GroupError::TakenOver);
        }
        // Another process leads the store, and may have leased the same events.
        if let Some(deposed @ Unavailable::Deposed(_)) = self.groups.commits.unavailable() {
            return Err(deposed.clone().into());
        }
        Ok(())
    }

    /// Whether the leasing gate is closed: then this process must not lease events, because another process may do so. Checked
    /// before events are reserved, and again before they are leased.
    fn is_gate_closed(&self) -> bool {
        self.groups.gate.get().is_some_and(|gate| !gate.is_open())
    }

    /// Called when the machine does not know this member. If the member has not left by itself, another member has taken the
    /// group over.
    fn note_removal(&self) {
        if !self.is_gone.load(Ordering::Acquire) {
            self.is_taken_over.store(true, Ordering::Release);
        }
    }

    fn depart(&self, how: impl FnOnce(&mut GroupCore, MemberId, Millis)) -> DurableTicket {
        if self.is_gone.swap(true, Ordering::AcqRel) {
            return DurableTicket::done();
        }
        self.runtime().act(&self.cell, |core, now| {
            how(core, self.id, now);
            core.forget_member(self.id);
            self.cell.waiters.remove(self.id);
            if core.machine.member_count() == 0 {
                self.groups.start_expiry(&self.cell, now);
            }
        });
        let generation = self.cell.changes.lock().current_generation();
        DurableTicket::new(Arc::clone(&self.records) as Arc<_>, generation)
    }
}

impl Membership for LocalMember {
    fn poll_pull(
        &self,
        limit: PullLimit,
        into: &mut DeliveryBatch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), GroupError>> {
        self.poll_next(&mut self.pull.lock(), limit, into, context)
    }

    fn stop_waiting(&self) {
        self.release_pending(&mut self.pull.lock());
    }

    fn settle(
        &self,
        verdicts: &[(Position, Verdict<'_>)],
        outcomes: &mut Vec<SettleOutcome>,
    ) -> DurableTicket {
        if self.groups.commits.is_closed() {
            outcomes.extend(verdicts.iter().map(|_| SettleOutcome::Stale));
            return DurableTicket::failed(Unavailable::Closed);
        }
        settle(&self.groups, &self.records, &self.cell, Sender::Member(self.id), verdicts, outcomes)
    }

    fn count_stale(&self) {
        self.cell.count_stale();
    }

    fn now_ms(&self) -> Millis {
        self.runtime().clock.steady_ms()
    }

    fn is_live(&self, item: &DeliveryItem, batch: &DeliveryBatch) -> bool {
        // If the epoch has changed, some leases are void, but not necessarily this one: a seek voids all leases, the deletion of
        // a topic only those of that topic. So the machine is asked.
        let is_leased = || self.cell.inspect(|core| core.machine.is_leased_to(self.id, item.position));
        self.now_ms() < item.deadline() && (batch.epoch() == self.cell.epoch() || is_leased())
    }

    fn cursor(&self) -> BoxFuture<'_, Option<CursorPosition>> {
        let spec = &self.cell.spec;
        Box::pin(async {
            self.groups.cursor(spec.subscription.as_str(), spec.group.as_str()).await.ok().flatten()
        })
    }

    fn pause(&self, is_paused: bool) {
        self.cell.pause(self.id, is_paused);
        if is_paused {
            // If `try_lock` fails, a pull is running on another thread. It began before the pause, and may still return events.
            self.pull.try_lock().into_iter().for_each(|mut pull| self.release_pending(&mut pull));
        } else {
            self.cell.waiters.wake_windows(Some(self.id));
        }
    }

    fn hold(&self, is_held: bool) {
        self.runtime().act(&self.cell, |core, now| {
            if is_held {
                core.machine.hold(self.id);
            } else {
                core.machine.unhold(self.id, now);
            }
        });
    }

    fn take_over(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        Box::pin(self.groups.take_over(&self.cell, self.id))
    }

    fn leave(&self) -> DurableTicket {
        self.depart(|core, id, now| core.machine.leave(id, now))
    }

    fn lose(&self) {
        // The change is written with the next commit; no caller waits for it.
        drop(self.depart(|core, id, now| core.machine.lose(id, now)));
    }
}

impl Drop for LocalMember {
    fn drop(&mut self) {
        self.lose();
    }
}

impl std::fmt::Debug for LocalMember {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "LocalMember({} of {}, {:?})", self.id.0, self.cell.spec.group, self.settings)
    }
}
