//! Stores that several processes can open and one leads: a database on the network.
//!
//! The lease record says which process leads. Processes compare-and-set it; `leadership` decides when. Safety does not depend on
//! it: every commit of an engine carries a fence that a newer term breaks.

use super::Engine;
use crate::box_future::BoxFuture;
use crate::clock::Clock;
use crate::error::OpenError;
use std::sync::Arc;

/// Who leads a store. There is one record per store.
///
/// Only processes that open the store read it: `secret` authenticates followers that relay connections to the leader.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Rises with every change of leader. Never falls, also over releases.
    pub term: u64,
    /// Rises with every write of the record, over all terms.
    pub revision: u64,
    /// The process that leads; empty if the last leader released the lease.
    pub leader_id: String,
    /// Where followers reach the leader, as `host:port`.
    pub address: String,
    /// SHA-256 of the leader's certificate; `None` if it listens without TLS.
    pub cert_hash: Option<[u8; 32]>,
    /// Made by the leader for its term.
    pub secret: [u8; 32],
}

impl LeaseRecord {
    /// Whether the last leader ended cleanly: nothing of it is on its way, and anybody may lead at once.
    pub fn is_released(&self) -> bool {
        self.leader_id.is_empty()
    }
}

impl std::fmt::Debug for LeaseRecord {
    /// Without the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { term, revision, leader_id, address, .. } = self;
        write!(formatter, "LeaseRecord(term {term}, revision {revision}, {leader_id:?} at {address})")
    }
}

/// The store did not answer, or refused. Whether a write was applied is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LeaseError(pub String);

/// Where the lease record is kept.
pub trait LeaseStore: Send + Sync + 'static {
    /// The record, as the store's majority has it; `None` if there never was one.
    ///
    /// # Errors
    /// [`LeaseError`].
    fn read(&self) -> BoxFuture<'_, Result<Option<LeaseRecord>, LeaseError>>;

    /// Writes `record` if the stored one still has the revision `expected` (`None`: if there is no record). Returns whether it was
    /// written; then it is durable.
    ///
    /// # Errors
    /// [`LeaseError`]: the write may have been applied, or may still be.
    fn compare_and_set(
        &self,
        expected: Option<u64>,
        record: LeaseRecord,
    ) -> BoxFuture<'_, Result<bool, LeaseError>>;
}

/// How an engine takes a store over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The term of the lease that the caller holds.
    pub term: u64,
    /// The leader before released the lease, so nothing of it is on its way.
    pub was_released: bool,
}

/// A store that several processes can open and one leads.
pub trait SharedStore: Send + Sync + 'static {
    /// Where it is, without credentials, for messages.
    fn location(&self) -> String;

    /// The lease record of the store.
    fn lease(&self) -> &dyn LeaseStore;

    /// Opens the engine as the leader of a term. It first writes its own fence, which breaks every commit of earlier terms, then
    /// reads the newest seqs and the group state.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Led`] if a newer term has written its fence.
    fn lead(
        &self,
        takeover: Takeover,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'_, Result<Arc<dyn Engine>, OpenError>>;
}
