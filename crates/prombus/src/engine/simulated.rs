//! An engine behind a simulated network, for tests: commits take a round trip, reads are pending, answers get lost, the
//! network fails and returns, and a second engine on the same database deposes the first.
//!
//! It is the same [`NetworkEngine`] that real databases use, over a [`Database`] in memory.
//!
//! **Invariants:** what an engine reported as committed is in the database once, whatever was lost on the way. An engine that
//! was deposed writes nothing. Every choice follows from the seed in [`NetworkOptions`], apart from the order in which threads
//! run.

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

/// An engine on a [`Database`]. It ends when it is closed or dropped; the database stays.
pub type SimulatedEngine = NetworkEngine<SimulatedLink>;

impl SimulatedEngine {
    /// Opens an engine on a database and takes it over: an engine that led before is deposed with its next commit.
    ///
    /// # Errors
    /// The database contains records that this version does not know, or a thread cannot be started.
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

    /// The network fails: until [`resume`](Self::resume) nothing is committed or read. Appends are refused with
    /// [`StoreError::Busy`](crate::StoreError::Busy) as soon as the observer was told. Nothing is committed after this returns.
    pub fn suspend(&self, reason: &str) {
        self.database().suspend(reason);
    }

    /// The network works again.
    pub fn resume(&self) {
        self.database().resume();
    }
}
