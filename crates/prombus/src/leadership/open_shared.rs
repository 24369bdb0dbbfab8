//! A bus on a store that several processes share, for a program that embeds it: one process has the bus, the others wait or
//! get an error.

use super::handle::Leadership;
use super::options::LeadershipOptions;
use super::role::Role;
use super::runner::StopError;
use crate::bus::{Bus, BusBuilder};
use crate::engine::{LeaseRecord, SharedStore};
use crate::error::OpenError;
use std::sync::Arc;
use std::time::Duration;

/// How long `open_shared` waits for the store if its caller does not wait for another leader.
const STORE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bus that leads its store. It derefs to [`Bus`].
///
/// When another process takes over, the bus stops for good ([`Bus::stopped`]): open another one.
#[derive(Debug)]
pub struct SharedBus {
    bus: Bus,
    leadership: Leadership,
}

impl SharedBus {
    /// Closes the bus and releases the lease, so that another process can lead at once.
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
    /// Opens a bus on a store that several processes share, as its leader. While another process leads, this waits for up to
    /// `wait`. A process that was killed counts as the leader for another six seconds.
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
        // This process may have taken the lease meanwhile; `end` releases it.
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

/// Waits until this process leads and returns its bus; `None` if it will not lead.
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
