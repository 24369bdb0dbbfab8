//! The interface of shared stores: databases on the network that several processes can open, of which one leads at a time. The
//! process that leads is the only one that writes. A *term* is the time in which one process leads.
//!
//! The lease record in the store says which process leads. Processes write it with compare-and-set; the module `leadership`
//! decides when. Safety does not depend on this record: each term first writes a *fence* to the store, and after that the store
//! rejects every commit of an earlier term.

use super::Engine;
use crate::box_future::BoxFuture;
use crate::clock::Clock;
use crate::error::OpenError;
use std::sync::Arc;

/// The record of the leader lease: it names the current leader of a store. Each store has one.
///
/// Only processes that open the store may see the record: its `secret` authenticates followers that relay connections to the
/// leader.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The number of the term. It rises with every change of leader, and never decreases, even when the lease is released.
    pub term: u64,
    /// Rises with every write of the record, in all terms.
    pub revision: u64,
    /// The id of the leading process; empty if the last leader released the lease.
    pub leader_id: String,
    /// The leader's address for followers, as `host:port`.
    pub address: String,
    /// The SHA-256 hash of the leader's certificate; `None` if it listens without TLS.
    pub cert_hash: Option<[u8; 32]>,
    /// A secret that the leader generates for its term.
    pub secret: [u8; 32],
}

impl LeaseRecord {
    /// Whether the last leader released the lease. If so, none of its commits is in flight, and any process may lead at once.
    pub fn is_released(&self) -> bool {
        self.leader_id.is_empty()
    }
}

impl std::fmt::Debug for LeaseRecord {
    /// Leaves out the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { term, revision, leader_id, address, .. } = self;
        write!(formatter, "LeaseRecord(term {term}, revision {revision}, {leader_id:?} at {address})")
    }
}

/// The store did not respond, or refused the request. Whether a write was applied is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LeaseError(pub String);

/// Stores the lease record.
pub trait LeaseStore: Send + Sync + 'static {
    /// Reads the record, as a majority of the database's members has committed it; `None` without a record.
    ///
    /// # Errors
    /// [`LeaseError`].
    fn read(&self) -> BoxFuture<'_, Result<Option<LeaseRecord>, LeaseError>>;

    /// Writes `record` if the stored record still has the revision `expected`, or if none is stored and `expected` is `None`.
    /// Returns whether the record was written; if so, it is durable.
    ///
    /// # Errors
    /// [`LeaseError`]. The write may have been applied, or may still be applied later.
    fn compare_and_set(
        &self,
        expected: Option<u64>,
        record: LeaseRecord,
    ) -> BoxFuture<'_, Result<bool, LeaseError>>;
}

/// What an engine must know to take over a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The term in which the caller holds the lease.
    pub term: u64,
    /// Whether the previous leader released the lease, so that none of its commits is in flight.
    pub was_released: bool,
}

/// A store that several processes can open and one process leads.
pub trait SharedStore: Send + Sync + 'static {
    /// The location of the store without credentials, for messages.
    fn location(&self) -> String;

    /// Access to the lease record of the store.
    fn lease(&self) -> &dyn LeaseStore;

    /// Opens the engine as the leader of a term. First writes the fence of this term, which invalidates every commit of earlier
    /// terms, then reads the newest seqs and the group state.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Led`] if a newer term has written its fence.
    fn lead(
        &self,
        takeover: Takeover,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'_, Result<Arc<dyn Engine>, OpenError>>;
}
