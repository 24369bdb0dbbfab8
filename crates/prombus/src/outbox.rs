//! The transactional outbox: a service writes events into its own database, in the same transaction as its business data,
//! and a drainer publishes them later.
//!
//! Every committed row is published exactly once, unless it is given up because it is invalid or all its attempts failed. A
//! row is published under its own id, so a drainer that dies after the publish and before marking the row creates no second
//! event. Only the drainer that holds a row can mark it.
//!
//! - [`OutboxStore`] holds the rows; [`SqliteOutbox`] (feature `sqlite`) is this crate's implementation.
//! - [`OutboxPublisher`] publishes them; a [`Bus`](crate::Bus) is one.
//! - [`OutboxDrainer`] moves rows from the store to the publisher.

mod drainer;
mod publisher;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use drainer::{DrainerCounts, DrainerHandle, OutboxDrainer};
pub use publisher::{OutboxPublisher, PublishFailure};
#[cfg(feature = "sqlite")]
pub use sqlite::{OUTBOX_SQL, SqliteOutbox};

use crate::box_future::BoxFuture;
use prombus_protocol::{PublishOptions, RawValue, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// The default number of failed attempts after which a row is given up.
pub const MAX_ATTEMPTS: u32 = 10;

/// An event to publish.
#[derive(Clone, Debug)]
pub struct OutboxRecord {
    /// The event's id. A second publish with the same id adds nothing.
    pub id: Uuid,
    /// The event's topic.
    pub topic: String,
    /// The event's payload.
    pub payload: Box<RawValue>,
    /// The event's headers.
    pub headers: BTreeMap<String, String>,
    /// The event's key.
    pub key: Option<String>,
    /// The event's `ts`, in milliseconds since 1970. If `None`, the store sets the time at which the row was added.
    pub ts: Option<i64>,
}

impl OutboxRecord {
    /// A record without headers and key.
    ///
    /// # Errors
    /// If the payload cannot be serialized as JSON.
    pub fn new<T: serde::Serialize + ?Sized>(
        id: Uuid,
        topic: impl Into<String>,
        payload: &T,
    ) -> Result<Self, serde_json::Error> {
        let payload = serde_json::value::to_raw_value(payload)?;
        Ok(Self { id, topic: topic.into(), payload, headers: BTreeMap::new(), key: None, ts: None })
    }

    /// The publish options of the event.
    pub fn options(&self) -> PublishOptions {
        PublishOptions {
            id: Some(self.id),
            ts: self.ts,
            key: self.key.clone(),
            headers: self.headers.clone(),
            ..PublishOptions::default()
        }
    }
}

/// A row that a worker holds.
#[derive(Debug)]
pub struct ClaimedRow {
    /// The row's id, as it was written into the store.
    pub row: String,
    /// The event, or why the row does not contain a valid one.
    pub record: Result<OutboxRecord, String>,
}

/// A row that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRow {
    /// The row's id in its store.
    pub row: String,
    /// Why it failed.
    pub error: String,
    /// Whether the row can never be published, so that it gets no more attempts.
    pub is_permanent: bool,
}

/// What became of failed rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// How many rows are tried again after a backoff.
    pub retried: u64,
    /// The ids of the rows that are given up.
    pub dead: Vec<String>,
}

/// Why a call of an outbox failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The database failed.
    #[cfg(feature = "sqlite")]
    #[error("the database of the outbox failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The store failed in another way.
    #[error("{0}")]
    Other(String),
}

/// The store of an outbox's rows. Calls take many rows, and change only rows that the worker still holds: a worker whose lease
/// has expired changes nothing.
pub trait OutboxStore: Send + Sync + 'static {
    /// Leases due rows to a worker, in the order in which they were added. No other worker gets them before the lease
    /// expires.
    fn claim_batch<'a>(
        &'a self,
        worker: &'a str,
        rows: u32,
        lease_ms: u64,
    ) -> BoxFuture<'a, Result<Vec<ClaimedRow>, OutboxError>>;

    /// Marks rows as published. Returns how many of them the worker still held.
    fn mark_sent<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
    ) -> BoxFuture<'a, Result<u64, OutboxError>>;

    /// Marks rows as failed. They are tried again after a backoff, or given up if the error is permanent or they have used
    /// up their attempts.
    fn mark_error<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [FailedRow],
    ) -> BoxFuture<'a, Result<Failed, OutboxError>>;

    /// Releases rows that were not tried, because nothing can be published at present. They are due at once, and this does not
    /// count as an attempt.
    fn release<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), OutboxError>>;

    /// Takes rows back from workers whose lease has expired. Returns the number of these rows.
    fn requeue_expired(&self) -> BoxFuture<'_, Result<u64, OutboxError>>;

    /// Deletes sent rows whose retention time has passed. Returns the number of deleted rows.
    fn purge_sent(&self) -> BoxFuture<'_, Result<u64, OutboxError>>;

    /// Waits until rows may be due. `idle_passes` is the number of consecutive passes that found no due row. The default
    /// implementation sleeps for `interval`.
    fn wait_for_rows(&self, interval: Duration, idle_passes: u32) -> BoxFuture<'_, ()> {
        let _ = idle_passes;
        Box::pin(tokio::time::sleep(interval))
    }
}
