//! The outbox: events that a service writes into its own database, in the transaction of its business, and that a drainer
//! publishes later.
//!
//! What committed there is published exactly once: a row is published under its own id, so that a drainer that dies between
//! the publish and the note of it makes no second event, and a row is marked only by the drainer that holds it.
//!
//! - [`OutboxStore`] is where rows are; [`SqliteOutbox`] (feature `sqlite`) is the one that comes with this crate.
//! - [`OutboxPublisher`] is where they go; a [`Bus`](crate::Bus) is one.
//! - [`OutboxDrainer`] takes from the one to the other.

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

/// A row fails for good after this many failed attempts, unless said otherwise.
pub const MAX_ATTEMPTS: u32 = 10;

/// An event that is to be published.
#[derive(Clone, Debug)]
pub struct OutboxRecord {
    /// Its id. A second publish with it adds nothing.
    pub id: Uuid,
    /// Where it goes.
    pub topic: String,
    /// What it says.
    pub payload: Box<RawValue>,
    /// Names and values that travel beside the payload.
    pub headers: BTreeMap<String, String>,
    /// What it is about.
    pub key: Option<String>,
    /// When it happened, in milliseconds since 1970. A store fills in when it was added.
    pub ts: Option<i64>,
}

impl OutboxRecord {
    /// A record without headers and key.
    ///
    /// # Errors
    /// When the payload cannot be written as JSON.
    pub fn new<T: serde::Serialize + ?Sized>(
        id: Uuid,
        topic: impl Into<String>,
        payload: &T,
    ) -> Result<Self, serde_json::Error> {
        let payload = serde_json::value::to_raw_value(payload)?;
        Ok(Self { id, topic: topic.into(), payload, headers: BTreeMap::new(), key: None, ts: None })
    }

    /// What a publish of it says beside topic and payload.
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
    /// What the row is called in its store: its id as it was written.
    pub row: String,
    /// The event, or why the row is none.
    pub record: Result<OutboxRecord, String>,
}

/// A row that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRow {
    /// What the row is called in its store.
    pub row: String,
    /// What went wrong.
    pub error: String,
    /// It will never work: no more attempts.
    pub is_permanent: bool,
}

/// What became of failed rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// They are tried again after a backoff.
    pub retried: u64,
    /// They are given up.
    pub dead: u64,
}

/// Why an outbox did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// The database.
    #[cfg(feature = "sqlite")]
    #[error("the database of the outbox failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The store failed in another way.
    #[error("{0}")]
    Other(String),
}

/// Where rows wait. All calls are for many rows, and only rows that the worker still holds are changed: who was slower than
/// its lease changes nothing.
pub trait OutboxStore: Send + Sync + 'static {
    /// Gives rows that are due to a worker, in the order in which they were added, for the time of a lease. No other worker
    /// gets them while it runs.
    fn claim_batch<'a>(
        &'a self,
        worker: &'a str,
        rows: u32,
        lease_ms: u64,
    ) -> BoxFuture<'a, Result<Vec<ClaimedRow>, OutboxError>>;

    /// They are published. Says how many the worker still held.
    fn mark_sent<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
    ) -> BoxFuture<'a, Result<u64, OutboxError>>;

    /// They failed: again after a backoff, or never when that is of no use or was tried often enough.
    fn mark_error<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [FailedRow],
    ) -> BoxFuture<'a, Result<Failed, OutboxError>>;

    /// They were not tried, because nothing can be published at present: they are due at once and no attempt counts.
    fn release<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), OutboxError>>;

    /// Takes rows from workers whose lease has ended. Says how many.
    fn requeue_expired(&self) -> BoxFuture<'_, Result<u64, OutboxError>>;

    /// Deletes rows that were sent long enough ago. Says how many.
    fn purge_sent(&self) -> BoxFuture<'_, Result<u64, OutboxError>>;

    /// Waits until rows may be due. `idle_passes` is how often in a row none was. Default: the interval.
    fn wait_for_rows(&self, interval: Duration, idle_passes: u32) -> BoxFuture<'_, ()> {
        let _ = idle_passes;
        Box::pin(tokio::time::sleep(interval))
    }
}
