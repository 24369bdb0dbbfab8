//! An outbox in a collection of the service's own database: the service adds rows in its transactions, and a drainer (a task of the
//! `prombus` crate) publishes them as events.
//!
//! A drainer claims rows with a token that is new for every claim. A later update of a row applies only if the row still has that token. A
//! claim is a lease: when it ends, other drainers may claim the row. Leases use the clock of the database server, so the clocks of drainers
//! may differ.

mod claims;
mod row;
mod wake;

use crate::json::json_of;
use crate::payload_bson::bson_of_json;
use crate::server_abilities::{ServerError, majority};
use claims::Rows;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{ClientSession, Collection, Database, IndexModel};
use prombus::BoxFuture;
use prombus::outbox::{ClaimedRow, Failed, FailedRow, MAX_ATTEMPTS, OutboxError, OutboxRecord, OutboxStore};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wake::Wake;

/// The default time for which sent rows are kept: a day.
const KEEP_SENT_MS: u64 = 24 * 3_600_000;

/// The collection `outbox` of a MongoDB database. This is a handle; clones share their claimed rows.
///
/// | field | meaning |
/// |---|---|
/// | `_id`, `id` | the row's id; a UUID becomes the event's id, any other text an idempotency key |
/// | `topic`, `payload`, `headers`, `key`, `ts` | the event; `payload_json` is the exact JSON text if BSON would change it |
/// | `status` | `pending`, `claimed`, `sent`, `error` (to be retried) or `dead` (given up) |
/// | `attempts`, `last_err` | the number of failed attempts, and the last error |
/// | `worker`, `claim`, `lease_until` | the drainer that claimed the row, its token, and the end of its lease; for `error`, `lease_until` is the time of the retry |
/// | `sent_at`, `expireAt` | when the event was published, and when MongoDB removes the row |
///
/// A service in another language adds rows with `id`, `topic`, `payload`, `ts` and `status: "pending"`.
#[derive(Clone)]
pub struct MongoOutbox {
    rows: Rows,
    wake: Arc<Wake>,
}

impl MongoOutbox {
    /// Opens the collection `outbox` of a database. Creates it and its indexes if they are missing.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn open(database: &Database) -> Result<Self, ServerError> {
        Self::open_collection(database, "outbox").await
    }

    /// Opens a collection with another name.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn open_collection(database: &Database, name: &str) -> Result<Self, ServerError> {
        let rows: Collection<Document> = database.collection(name);
        let expiry = IndexOptions::builder().expire_after(Duration::ZERO).build();
        rows.create_indexes([
            index(doc! { "status": 1, "lease_until": 1 }, None),
            index(doc! { "ts": 1 }, None),
            index(doc! { "status": 1, "ts": 1 }, None),
            index(doc! { "expireAt": 1 }, Some(expiry)),
        ])
        .await?;
        let wake = Arc::new(Wake::new(rows.clone(), database.clone()));
        let rows =
            Rows { rows, keep_sent_ms: KEEP_SENT_MS, max_attempts: MAX_ATTEMPTS, claims: Arc::default() };
        Ok(Self { rows, wake })
    }

    /// How long sent rows are kept. Default: a day. With 0, a row is deleted when it is sent.
    #[must_use]
    pub fn keep_sent_ms(mut self, keep_ms: u64) -> Self {
        self.rows.keep_sent_ms = keep_ms;
        self
    }

    /// The number of failed attempts after which a row is given up. Default: 10. If the bus is unreachable, the attempt does not count.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.rows.max_attempts = attempts.max(1);
        self
    }

    /// Adds a record. With the caller's session, the record is part of the session's transaction, and is stored if that transaction
    /// commits. With `None`, it is stored at once.
    ///
    /// # Errors
    /// Errors of the driver. Also fails if a row with this id exists.
    pub async fn add(
        &self,
        record: &OutboxRecord,
        session: Option<&mut ClientSession>,
    ) -> mongodb::error::Result<()> {
        let row = row_of(record);
        match session {
            Some(session) => self.rows.rows.insert_one(row).session(session).await?,
            None => self.rows.rows.insert_one(row).write_concern(majority()).await?,
        };
        Ok(())
    }

    /// The number of rows per status.
    ///
    /// # Errors
    /// Errors of the driver.
    pub async fn counts(&self) -> mongodb::error::Result<BTreeMap<String, u64>> {
        use futures_util::TryStreamExt as _;
        let stages = [doc! { "$group": { "_id": "$status", "rows": { "$sum": 1 } } }];
        let groups: Vec<Document> = self.rows.rows.aggregate(stages).await?.try_collect().await?;
        let count = |group: &Document| {
            let rows = group.get_i32("rows").map(i64::from).or_else(|_| group.get_i64("rows"));
            u64::try_from(rows.unwrap_or(0)).unwrap_or(0)
        };
        let named =
            |group: Document| (group.get("_id").map(crate::json::name_of).unwrap_or_default(), count(&group));
        Ok(groups.into_iter().map(named).collect())
    }
}

fn index(keys: Document, options: Option<IndexOptions>) -> IndexModel {
    IndexModel::builder().keys(keys).options(options).build()
}

/// A record as it is stored.
fn row_of(record: &OutboxRecord) -> Document {
    let id = record.id.to_string();
    let mut row = doc! { "_id": &id, "id": &id, "topic": &record.topic };
    let json = record.payload.get();
    let payload = bson_of_json(json);
    // The JSON text is stored too if BSON would change it: the order of fields, the notation of numbers, values that do not fit.
    if payload.as_ref().is_none_or(|payload| json_of(payload) != json) {
        row.insert("payload_json", json);
    }
    row.insert("payload", payload.unwrap_or(Bson::Null));
    if !record.headers.is_empty() {
        let headers = record.headers.iter().map(|(name, value)| (name.clone(), Bson::from(value.as_str())));
        row.insert("headers", headers.collect::<Document>());
    }
    if let Some(key) = &record.key {
        row.insert("key", key);
    }
    let now = || mongodb::bson::DateTime::now().timestamp_millis();
    row.insert("ts", record.ts.unwrap_or_else(now));
    row.insert("status", "pending");
    row
}

impl OutboxStore for MongoOutbox {
    fn claim_batch<'a>(
        &'a self,
        worker: &'a str,
        rows: u32,
        lease_ms: u64,
    ) -> BoxFuture<'a, Result<Vec<ClaimedRow>, OutboxError>> {
        Box::pin(async move { self.rows.claim(worker, rows, lease_ms).await.map_err(outbox_error) })
    }

    fn mark_sent<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
    ) -> BoxFuture<'a, Result<u64, OutboxError>> {
        Box::pin(async move { self.rows.sent(worker, rows).await.map_err(outbox_error) })
    }

    fn mark_error<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [FailedRow],
    ) -> BoxFuture<'a, Result<Failed, OutboxError>> {
        Box::pin(async move { self.rows.failed(worker, rows).await.map_err(outbox_error) })
    }

    fn release<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), OutboxError>> {
        Box::pin(async move { self.rows.give_back(worker, rows, reason).await.map_err(outbox_error) })
    }

    fn requeue_expired(&self) -> BoxFuture<'_, Result<u64, OutboxError>> {
        Box::pin(async move { self.rows.requeue().await.map_err(outbox_error) })
    }

    /// Deletes sent rows that have expired. MongoDB does this too, every minute.
    fn purge_sent(&self) -> BoxFuture<'_, Result<u64, OutboxError>> {
        Box::pin(async move { self.rows.purge().await.map_err(outbox_error) })
    }

    fn wait_for_rows(&self, interval: Duration, idle_passes: u32) -> BoxFuture<'_, ()> {
        Box::pin(self.wake.wait(interval, idle_passes))
    }
}

impl std::fmt::Debug for MongoOutbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MongoOutbox({})", self.rows.rows.namespace())
    }
}

fn outbox_error(error: mongodb::error::Error) -> OutboxError {
    OutboxError::Other(crate::errors::reason(&error))
}
