//! An outbox in a SQLite table, in the database of the business data. A service writes business data and rows of the outbox in
//! one transaction, so that both are stored or neither.
//!
//! Rows are claimed in the order of their rowids, i.e. the order in which they were added. A claim is an UPDATE in an
//! immediate transaction, so only one of several drainers gets a row.

use super::{ClaimedRow, Failed, FailedRow, MAX_ATTEMPTS, OutboxError, OutboxRecord, OutboxStore};
use crate::box_future::BoxFuture;
use crate::clock::{Clock, SystemClock};
use crate::delivery::backoff_ms;
use crate::sqlite::{Database, DatabaseError};
use prombus_protocol::{RawValue, id_of_key};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The SQL that creates the table. [`SqliteOutbox::open`] runs it; a service that starts first may run it too.
///
/// A service in any language adds a row with `id`, `topic` and `payload`, and optionally `headers`, `key` and `ts`:
///
/// ```sql
/// INSERT INTO outbox (id, topic, payload) VALUES ('order-17', 'orders', '{"item":7}');
/// ```
///
/// | column | content |
/// |---|---|
/// | `id` | the event's id: a UUID, or any other text, which is hashed to a UUID |
/// | `topic`, `payload` | the event's topic, and its payload as JSON |
/// | `headers` | a JSON object whose values are strings |
/// | `key` | the event's key |
/// | `ts` | the event's time in milliseconds since 1970; default: the time of the insert |
/// | `status` | `pending`; `claimed` by a drainer; `sent`; `error` (tried again at `next_attempt_ms`); `dead` (given up) |
/// | `attempts`, `last_err` | the number of failed attempts, and the last error |
/// | `worker`, `lease_until_ms` | the drainer that holds the row, and until when |
/// | `sent_ms` | when the row was published |
#[doc = concat!("\n```sql\n", include_str!("outbox.sql"), "```")]
pub const OUTBOX_SQL: &str = include_str!("outbox.sql");

/// How long sent rows are kept by default: a day.
const KEEP_SENT_MS: u64 = 24 * 3_600_000;
/// The most sent rows that are deleted in one transaction.
const PURGE_ROWS: i64 = 1_000;
/// Longer error texts are cut to this length.
const ERROR_CHARS_MAX: usize = 1_000;

/// The table `outbox` of a SQLite database. See [`OutboxDrainer`](super::OutboxDrainer) for an example.
///
/// A drainer may run in the service's process or in another one; the service adds rows through its own connection. The
/// settings of that connection decide whether its commits survive a power cut: use `PRAGMA synchronous = FULL`.
#[derive(Clone)]
pub struct SqliteOutbox {
    database: Database,
    clock: Arc<dyn Clock>,
    /// How long sent rows are kept.
    keep_sent_ms: u64,
    /// The number of failed attempts after which a row is given up.
    max_attempts: u32,
}

impl SqliteOutbox {
    /// Opens the database, and creates it and the table if they do not exist. Sets the database to WAL mode.
    ///
    /// # Errors
    /// See [`OutboxError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OutboxError> {
        let database = Database::open(path.as_ref())?;
        database.with(|connection| connection.execute_batch(OUTBOX_SQL))?;
        let clock = Arc::new(SystemClock::default());
        Ok(Self { database, clock, keep_sent_ms: KEEP_SENT_MS, max_attempts: MAX_ATTEMPTS })
    }

    /// How long sent rows are kept. Default: a day. With 0 a row is deleted when it is sent.
    #[must_use]
    pub fn keep_sent_ms(mut self, keep_ms: u64) -> Self {
        self.keep_sent_ms = keep_ms;
        self
    }

    /// How many failed attempts a row has before it is given up. Default: 10. A bus that cannot be reached does not count as
    /// an attempt.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// The source of time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Adds a record through the caller's connection or transaction: the row exists if the caller's transaction commits,
    /// and does not exist if it rolls back.
    ///
    /// # Errors
    /// See [`OutboxError`]; also if a row with this id exists.
    pub fn add(connection: &Connection, record: &OutboxRecord) -> Result<(), OutboxError> {
        let headers = match record.headers.is_empty() {
            true => None,
            false => Some(
                serde_json::to_string(&record.headers)
                    .map_err(|error| OutboxError::Other(error.to_string()))?,
            ),
        };
        let ts = record.ts.unwrap_or_else(|| SystemClock::default().wall_ms());
        let sql = "INSERT INTO outbox (id, topic, payload, headers, key, ts) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        connection.prepare_cached(sql)?.execute(params![
            record.id.to_string(),
            record.topic,
            record.payload.get(),
            headers,
            record.key,
            ts
        ])?;
        Ok(())
    }

    /// How many rows have each status, for operators.
    ///
    /// # Errors
    /// See [`OutboxError`].
    pub async fn counts(&self) -> Result<BTreeMap<String, u64>, OutboxError> {
        let count = |connection: &mut Connection| {
            let mut statement =
                connection.prepare_cached("SELECT status, count(*) FROM outbox GROUP BY status")?;
            let rows =
                statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?;
            rows.collect()
        };
        Ok(self.database.call(count).await?)
    }

    /// Calls `work` in an immediate transaction.
    async fn transact<T, F>(&self, work: F) -> Result<T, OutboxError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error> + Send + 'static,
    {
        let transact = |connection: &mut Connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        Ok(self.database.call(transact).await?)
    }
}

impl std::fmt::Debug for SqliteOutbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SqliteOutbox")
    }
}

impl From<DatabaseError> for OutboxError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Sqlite(error) => Self::Sqlite(error),
            other => Self::Other(other.to_string()),
        }
    }
}

impl OutboxStore for SqliteOutbox {
    fn claim_batch<'a>(
        &'a self,
        worker: &'a str,
        rows: u32,
        lease_ms: u64,
    ) -> BoxFuture<'a, Result<Vec<ClaimedRow>, OutboxError>> {
        let worker = worker.to_owned();
        let now = self.clock.wall_ms();
        let until = now.saturating_add(i64::try_from(lease_ms).unwrap_or(i64::MAX));
        Box::pin(async move {
            // Look first without a transaction: an idle drainer must not take the write lock from the service.
            if self.database.call(move |connection| Ok(due(connection, now, 1)?.is_empty())).await? {
                return Ok(Vec::new());
            }
            let claim = move |transaction: &Transaction<'_>| {
                let sql = "UPDATE outbox SET status = 'claimed', worker = ?2, lease_until_ms = ?3
                    WHERE rowid = ?1 RETURNING id, topic, payload, headers, key, ts";
                let mut statement = transaction.prepare_cached(sql)?;
                let mut claimed = Vec::new();
                for rowid in due(transaction, now, rows)? {
                    match statement.query_row(params![rowid, worker, until], claimed_row)? {
                        Some(row) => claimed.push(row),
                        None => give_up_unreadable_id(transaction, rowid)?,
                    }
                }
                Ok(claimed)
            };
            self.transact(claim).await
        })
    }

    fn mark_sent<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
    ) -> BoxFuture<'a, Result<u64, OutboxError>> {
        let (worker, rows, now) = (worker.to_owned(), rows.to_vec(), self.clock.wall_ms());
        let is_kept = self.keep_sent_ms > 0;
        Box::pin(self.transact(move |transaction| {
            let keep = "UPDATE outbox
                SET status = 'sent', sent_ms = ?3, worker = NULL, lease_until_ms = 0, last_err = NULL
                WHERE id = ?1 AND worker = ?2 AND status = 'claimed'";
            let delete = "DELETE FROM outbox WHERE id = ?1 AND worker = ?2 AND status = 'claimed'";
            let mut statement = transaction.prepare_cached(if is_kept { keep } else { delete })?;
            let mut count = 0;
            for row in &rows {
                count += match is_kept {
                    true => statement.execute(params![row, worker, now])?,
                    false => statement.execute(params![row, worker])?,
                };
            }
            Ok(count as u64)
        }))
    }

    fn mark_error<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [FailedRow],
    ) -> BoxFuture<'a, Result<Failed, OutboxError>> {
        let (worker, rows, now) = (worker.to_owned(), rows.to_vec(), self.clock.wall_ms());
        let max_attempts = self.max_attempts;
        Box::pin(self.transact(move |transaction| {
            let mut failed = Failed::default();
            for row in &rows {
                match fail(transaction, &worker, row, max_attempts, now)? {
                    Some(true) => failed.dead.push(row.row.clone()),
                    Some(false) => failed.retried += 1,
                    None => {}
                }
            }
            Ok(failed)
        }))
    }

    fn release<'a>(
        &'a self,
        worker: &'a str,
        rows: &'a [String],
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), OutboxError>> {
        let (worker, rows, reason) = (worker.to_owned(), rows.to_vec(), shortened(reason));
        let sql = "UPDATE outbox SET status = 'pending', worker = NULL, lease_until_ms = 0, last_err = ?3
            WHERE id = ?1 AND worker = ?2 AND status = 'claimed'";
        Box::pin(self.transact(move |transaction| {
            let mut statement = transaction.prepare_cached(sql)?;
            for row in &rows {
                statement.execute(params![row, worker, reason])?;
            }
            Ok(())
        }))
    }

    fn requeue_expired(&self) -> BoxFuture<'_, Result<u64, OutboxError>> {
        let now = self.clock.wall_ms();
        Box::pin(async move {
            let is_any = move |connection: &mut Connection| {
                let sql =
                    "SELECT EXISTS (SELECT 1 FROM outbox WHERE status = 'claimed' AND lease_until_ms <= ?1)";
                connection.prepare_cached(sql)?.query_row([now], |row| row.get::<_, bool>(0))
            };
            if !self.database.call(is_any).await? {
                return Ok(0);
            }
            let sql =
                "UPDATE outbox SET status = 'pending', worker = NULL, lease_until_ms = 0, next_attempt_ms = 0
                WHERE status = 'claimed' AND lease_until_ms <= ?1";
            let requeued =
                self.database.call(move |connection| connection.prepare_cached(sql)?.execute([now]));
            Ok(requeued.await? as u64)
        })
    }

    fn purge_sent(&self) -> BoxFuture<'_, Result<u64, OutboxError>> {
        let keep = i64::try_from(self.keep_sent_ms).unwrap_or(i64::MAX);
        let before = self.clock.wall_ms().saturating_sub(keep);
        Box::pin(async move {
            let sql = "DELETE FROM outbox WHERE rowid IN
                (SELECT rowid FROM outbox WHERE status = 'sent' AND sent_ms <= ?1 LIMIT ?2)";
            let mut count = 0;
            loop {
                let purge = move |connection: &mut Connection| {
                    connection.prepare_cached(sql)?.execute(params![before, PURGE_ROWS])
                };
                let purged = self.database.call(purge).await?;
                count += purged as u64;
                if purged < PURGE_ROWS as usize {
                    return Ok(count);
                }
            }
        })
    }
}

/// The rowids of due rows, both retries and new rows, in the order in which they were added.
fn due(connection: &Connection, now_ms: i64, rows: u32) -> Result<Vec<i64>, rusqlite::Error> {
    // All new rows have the same next_attempt_ms, so the index returns them in the order of their rowids.
    let sql = "SELECT rowid FROM outbox WHERE status = ?1 AND next_attempt_ms <= ?2
        ORDER BY next_attempt_ms, rowid LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rowids: Vec<i64> = Vec::new();
    for status in ["error", "pending"] {
        let room = i64::from(rows) - rowids.len() as i64;
        let found = statement.query_map(params![status, now_ms, room], |row| row.get(0))?;
        for rowid in found {
            rowids.push(rowid?);
        }
    }
    rowids.sort_unstable();
    Ok(rowids)
}

/// Reads a claimed row. Returns `None` if its id is not UTF-8, which SQLite allows in a text column.
fn claimed_row(row: &Row<'_>) -> Result<Option<ClaimedRow>, rusqlite::Error> {
    let name = text(row, 0, "id").ok().flatten();
    Ok(name.map(|name| ClaimedRow { row: name, record: record(row) }))
}

/// Gives up a row whose id cannot be read, so that it does not delay other rows.
fn give_up_unreadable_id(transaction: &Transaction<'_>, rowid: i64) -> Result<(), rusqlite::Error> {
    let sql =
        "UPDATE outbox SET status = 'dead', worker = NULL, last_err = 'the id is not UTF-8' WHERE rowid = ?1";
    transaction.execute(sql, [rowid])?;
    tracing::warn!("outbox: row with rowid {rowid} given up: its id is not UTF-8");
    Ok(())
}

/// The record of a row, or what is wrong with it. A service in another language may have written anything.
fn record(row: &Row<'_>) -> Result<OutboxRecord, String> {
    let id = text(row, 0, "id")?.ok_or("the id is NULL")?;
    let topic = text(row, 1, "topic")?.ok_or("the topic is NULL")?;
    let payload = text(row, 2, "payload")?.ok_or("the payload is NULL")?;
    let payload =
        RawValue::from_string(payload).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let headers = match text(row, 3, "headers")? {
        None => BTreeMap::new(),
        Some(json) => serde_json::from_str(&json)
            .map_err(|error| format!("the headers are not a JSON object of strings: {error}"))?,
    };
    let ts = row.get::<_, Option<i64>>(5).map_err(|error| format!("the ts is not an integer: {error}"))?;
    Ok(OutboxRecord { id: id_of_key(&id), topic, payload, headers, key: text(row, 4, "key")?, ts })
}

/// The text of a column, also if it was written as a blob.
fn text(row: &Row<'_>, column: usize, name: &str) -> Result<Option<String>, String> {
    match row.get_ref(column).map_err(|error| error.to_string())? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(format!("the {name} is not UTF-8")),
        },
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(format!("the {name} is a number, not text")),
    }
}

/// Records a failure. Returns true if the row is given up, false if it will be retried, `None` if the worker does not hold
/// it.
fn fail(
    transaction: &Transaction<'_>,
    worker: &str,
    failed: &FailedRow,
    max_attempts: u32,
    now_ms: i64,
) -> Result<Option<bool>, rusqlite::Error> {
    let sql = "UPDATE outbox SET attempts = attempts + 1 WHERE id = ?1 AND worker = ?2 AND status = 'claimed'
        RETURNING rowid, attempts";
    let mut statement = transaction.prepare_cached(sql)?;
    let mut held = statement.query(params![failed.row, worker])?;
    let Some(row) = held.next()? else { return Ok(None) };
    let (rowid, attempts): (i64, i64) = (row.get(0)?, row.get(1)?);
    drop(held);
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    let is_dead = failed.is_permanent || attempts >= max_attempts;
    let backoff = backoff_ms(attempts, rowid.cast_unsigned()).cast_signed();
    let sql = "UPDATE outbox SET status = ?2, worker = NULL, lease_until_ms = 0, last_err = ?3, next_attempt_ms = ?4
        WHERE rowid = ?1";
    let status = if is_dead { "dead" } else { "error" };
    let next_attempt_ms = if is_dead { 0 } else { now_ms.saturating_add(backoff) };
    let error = shortened(&failed.error);
    transaction.prepare_cached(sql)?.execute(params![rowid, status, error, next_attempt_ms])?;
    Ok(Some(is_dead))
}

fn shortened(error: &str) -> String {
    error.chars().take(ERROR_CHARS_MAX).collect()
}
