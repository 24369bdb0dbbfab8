//! Groups: creating, restoring, pausing, moving, deleting and describing them, and settling their deliveries.

pub(super) mod act;
mod ages;
pub(super) mod cell;
mod create;
pub(super) mod dead_letter_queue;
mod delete;
mod durable_ticket;
mod expiry;
mod idle;
mod info;
mod oldest_unsettled;
mod pause;
pub(super) mod pending_changes;
mod seek;
mod seek_preview;
pub(super) mod settle;
mod spec_record;
pub(super) mod start_position;
mod waiters;

pub(super) use durable_ticket::GroupRecords;

use super::registry::{Registry, TopicRefused};
use crate::commit_watch::CommitWatch;
use crate::delivery::ErrorBudget;
use crate::engine::Engine;
use crate::error::{GroupError, StoreError, Unavailable};
use crate::leasing_gate::LeasingGate;
use crate::publishing::PublishLine;
use act::GroupRuntime;
pub(super) use oldest_unsettled::OldestUnsettledTimes;
use std::sync::{Arc, OnceLock};

/// The operations on groups.
pub(super) struct Groups {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) runtime: Arc<GroupRuntime>,
    pub(super) registry: Arc<Registry>,
    pub(super) commits: Arc<CommitWatch>,
    /// The queue of publishes that wait for room in the engine.
    pub(super) publish_line: Arc<dyn PublishLine>,
    pub(super) error_budget: ErrorBudget,
    /// The commit times that the metrics looked up last.
    pub(super) oldest_unsettled: OldestUnsettledTimes,
    pub(super) max_groups: usize,
    /// Groups without members are deleted after this time, unless their creator set another time. `None` means never.
    pub(super) expire_ms: Option<u64>,
    /// Set on a store that several processes share: decides whether this process may lease events.
    pub(super) gate: OnceLock<Arc<LeasingGate>>,
}

impl Groups {
    /// Returns an error if this process must not lease events or extend leases at present, because another process may have
    /// leased the same events.
    pub(super) fn check_leasing(&self) -> Result<(), Unavailable> {
        if let Some(deposed @ Unavailable::Deposed(_)) = self.commits.unavailable() {
            return Err(deposed.clone());
        }
        if self.gate.get().is_some_and(|gate| !gate.is_open()) {
            return Err(Unavailable::Suspended("the lease could not be renewed".to_owned()));
        }
        Ok(())
    }
}

/// The result of an attempt to append.
pub(super) enum Tried<T> {
    Done(T),
    /// The engine has no room. The attempt is repeated when there is room.
    Busy,
}

fn busy_or<T>(refused: impl Into<TopicRefused>) -> Result<Tried<T>, GroupError> {
    match refused.into() {
        TopicRefused::Engine(StoreError::Busy) => Ok(Tried::Busy),
        other => Err(other.into()),
    }
}

/// Repeats an attempt until the engine has room for it. Fails if the engine has been suspended for too long.
pub(super) async fn with_room<T, E: From<Unavailable>>(
    commits: &CommitWatch,
    mut attempt: impl FnMut() -> Result<Tried<T>, E>,
) -> Result<T, E> {
    std::future::poll_fn(|context| {
        if let Tried::Done(done) = attempt()? {
            return std::task::Poll::Ready(Ok(done));
        }
        // Registers before the second attempt, so that room that appears between the two attempts is not missed.
        commits.register_for_room(context);
        match attempt()? {
            Tried::Done(done) => std::task::Poll::Ready(Ok(done)),
            Tried::Busy => match commits.suspended() {
                Some(reason) => std::task::Poll::Ready(Err(reason.into())),
                None => std::task::Poll::Pending,
            },
        }
    })
    .await
}
