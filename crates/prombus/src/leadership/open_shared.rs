//! Opens a bus on a store that several processes share, for programs that embed the bus. At any time one process has the
//! bus; `open_shared` of the other processes waits or returns an error.

use super::handle::Leadership;
use super::options::LeadershipOptions;
use super::role::Role;
use super::runner::StopError;
use crate::bus::{Bus, BusBuilder};
use crate::engine::{LeaseRecord, SharedStore};
use crate::error::OpenError;
use std::sync::Arc;
use std::time::Duration;

/// How long `open_shared` waits for the store to respond if it was called without `wait`.
const STORE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bus on a shared store, in the process that leads the store. It dereferences to [`Bus`].
///
/// When another process takes over, this bus stops permanently ([`Bus::stopped`]). To continue, open another one.
#[derive(Debug)]
pub struct SharedBus {
    bus: Bus,
    leadership: Leadership,
}

impl SharedBus {
    /// Closes the bus and releases the leader lease, so that another process can lead at once.
    ///
    /// # Errors
    /// See [`StopError`].
    pub async fn close(self) -> Result<(), StopError> {
        self.leadership.stop().await
    }
}

impl std::ops::Deref for SharedBus {
    type Target = Bus;

    fn deref(&self) -> &Bus {
        &self.bus
    }
}

impl BusBuilder {
    /// Opens a bus on a store that several processes share, as its leader. While another process leads, this waits, at most
    /// for `wait`; if `wait` is `None`, it fails at once. A leader that was killed counts as the leader for another 6 s (by
    /// default, [`LeaseTiming::take_after_ms`](super::LeaseTiming::take_after_ms)).
    ///
    /// # Errors
    /// [`OpenError::Led`] if another process leads; see [`OpenError`] for the rest.
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn open_shared(
        self,
        store: Arc<dyn SharedStore>,
        options: LeadershipOptions,
        wait: Option<Duration>,
    ) -> Result<SharedBus, OpenError> {
        self.check()?;
        let location = store.location();
        let clock = self.clock_or_system();
        let leadership = Leadership::start_single(store, self, options, clock);
        let patience = wait.unwrap_or(STORE_RESPONSE_TIMEOUT);
        let leading = tokio::time::timeout(patience, until_leading(&leadership, wait.is_some())).await;
        if let Ok(Some(bus)) = leading {
            return Ok(SharedBus { bus, leadership });
        }
        let role = leadership.roles().borrow().clone();
        // This process may have taken the lease after the timeout; `end` then releases it.
        let ended = leadership.end().await;
        Err(match (ended.open_error, role) {
            (Some(error), _) => error,
            (None, Role::Following { leader: Some(LeaseRecord { address, term, .. }) }) => {
                OpenError::Led { address, term }
            }
            _ => OpenError::Store(format!("{location}: could not get the leader lease within {patience:?}")),
        })
    }
}

/// Waits until this process leads, and returns its bus. Returns `None` if the task has ended, or if another process leads
/// and `waits` is false.
async fn until_leading(leadership: &Leadership, waits: bool) -> Option<Bus> {
    let mut roles = leadership.roles();
    loop {
        match &*roles.borrow_and_update() {
            Role::Leading { bus, .. } => return Some(bus.clone()),
            Role::Following { leader: Some(_) } if !waits => return None,
            _ => {}
        }
        roles.changed().await.ok()?;
    }
}
