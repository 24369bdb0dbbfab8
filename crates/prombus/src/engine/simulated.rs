//! An engine over a simulated network, for tests. Commits take a round trip, reads are not ready at once, responses get lost, the
//! network fails and recovers, and a second engine on the same database deposes the first (takes over from it).
//!
//! The engine is the [`NetworkEngine`] that real databases use; only its [`Database`], which is in memory, is simulated.
//!
//! **Invariants:** a commit that an engine reported as durable is in the database exactly once, no matter what the network lost.
//! A deposed engine writes nothing. Every random choice follows from the seed in [`NetworkOptions`], but the order in which
//! threads run does not.

mod database;
mod faults;
mod lease;
mod link;
mod shared;
#[cfg(test)]
mod tests;
mod topic_events;

pub use database::Database;
pub use faults::NetworkOptions;
pub use link::SimulatedLink;
pub use shared::{LeaseFault, SimulatedStore};

use super::network::{NetworkEngine, network_runtime};
use crate::clock::Clock;
use crate::error::OpenError;
use std::sync::Arc;

/// An engine on a [`Database`]. The engine ends when it is closed or dropped; the database remains.
pub type SimulatedEngine = NetworkEngine<SimulatedLink>;

impl SimulatedEngine {
    /// Opens an engine on a database and takes the database over: the previous leader is deposed at its next commit.
    ///
    /// # Errors
    /// When the database contains records that this version does not know, or a thread cannot be started.
    pub fn open(
        database: &Database,
        options: NetworkOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let (term, found) = database.take_over().map_err(OpenError::Groups)?;
        let limits = options.limits();
        let runtime = network_runtime(limits.threads)?;
        let link = Arc::new(SimulatedLink::new(database.clone(), term, options, Arc::clone(&clock)));
        Ok(Self::start(link, found, limits, clock, runtime))
    }

    /// Makes the network fail. After this returns, nothing is committed, and reads wait, until [`resume`](Self::resume). Appends
    /// are refused with [`StoreError::Busy`](crate::StoreError::Busy) when the engine has called
    /// [`EngineObserver::suspended`](crate::engine::EngineObserver::suspended).
    pub fn suspend(&self, reason: &str) {
        self.database().suspend(reason);
    }

    /// Makes the network work again.
    pub fn resume(&self) {
        self.database().resume();
    }
}
