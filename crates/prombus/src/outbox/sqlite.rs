//! An outbox in a table of SQLite, beside the tables of the business: whoever writes both in one transaction has both or none.
//!
//! Rows are taken in the order of their rowids, which is the order in which they were added. A claim is an UPDATE in an
//! immediate transaction: of several drainers one gets a row, the others do not see it.

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

/// The table. [`SqliteOutbox::open`] runs this; a service that comes first may run it, too.
///
/// A service adds a row with `id`, `topic` and `payload`, in whatever language, and may add `headers`, `key` and `ts`:
///
/// ```sql
/// INSERT INTO outbox (id, topic, payload) VALUES ('order-17', 'orders', '{"item":7}');
/// ```
///
/// | column | |
/// |---|---|
/// | `id` | a UUID, or any text, which is hashed to one; the event's id |
/// | `topic`, `payload` | where it goes, and its JSON |
/// | `headers` | a JSON object of texts |
/// | `key` | what the event is about |
/// | `ts` | milliseconds since 1970; the time of the insert if it is left out |
/// | `status` | `pending`, `claimed` by a drainer, `sent`, `error`: tried again at `next_attempt_ms`, `dead`: given up |
/// | `attempts`, `last_err` | how often it failed, and how |
/// | `worker`, `lease_until_ms` | who has it, and until when |
/// | `sent_ms` | when it was published |
#[doc = concat!("\n```sql\n", include_str!("outbox.sql"), "```")]
pub const OUTBOX_SQL: &str = include_str!("outbox.sql");

/// How long rows that were sent are kept, unless said otherwise: a day.
const KEEP_SENT_MS: u64 = 24 * 3_600_000;
/// How many old rows are deleted in one transaction.
const PURGE_ROWS: i64 = 1_000;
/// An error is kept up to this length.
const ERROR_CHARS_MAX: usize = 1_000;

/// The table `outbox` of a SQLite database. See [`OutboxDrainer`](super::OutboxDrainer) for an example.
///
/// A drainer may be in the service's own process or in another; the service adds rows through a connection of its own. How
/// durable a commit of the service is, is up to its connection: `PRAGMA synchronous = FULL` makes it survive a power cut.
#[derive(Clone)]
pub struct SqliteOutbox {
    database: Database,
    clock: Arc<dyn Clock>,
    keep_sent_ms: u64,
    max_attempts: u32,
}

impl SqliteOutbox {
    /// Opens a database, or makes one, and the table. The database is set to WAL.
    ///
    /// # Errors
    /// See [`OutboxError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OutboxError> {
        let database = Database::open(path.as_ref())?;
        database.with(|connection| connection.execute_batch(OUTBOX_SQL))?;
        let clock = Arc::new(SystemClock::default());
        Ok(Self { database, clock, keep_sent_ms: KEEP_SENT_MS, max_attempts: MAX_ATTEMPTS })
    }

    /// How long rows that were sent are kept. Default: a day. 0 deletes a row when it is sent.
    #[must_use]
    pub fn keep_sent_ms(mut self, keep_ms: u64) -> Self {
        self.keep_sent_ms = keep_ms;
        self
    }

    /// How many attempts may fail before a row is given up. Default: 10. A bus that cannot be reached is no attempt.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Where the time comes from, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Adds a record through the caller's connection or transaction: it is there when that commits, and not when it rolls
    /// back.
    ///
    /// # Errors
    /// See [`OutboxError`]; also when there is a row of this id.
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

    /// Works in an immediate transaction.
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
            // An idle drainer must not take the lock of those who write.
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
                        None => give_up_nameless(transaction, rowid)?,
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
                    Some(true) => failed.dead += 1,
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

/// Rows that are due: those that failed before and new ones, in the order in which they were added.
fn due(connection: &Connection, now_ms: i64, rows: u32) -> Result<Vec<i64>, rusqlite::Error> {
    // New rows all have the same time of their next attempt: the index has them in the order of their rowids.
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

/// `None` for a row whose id is no text, which the table allows when it is not UTF-8.
fn claimed_row(row: &Row<'_>) -> Result<Option<ClaimedRow>, rusqlite::Error> {
    let name = text(row, 0, "id").ok().flatten();
    Ok(name.map(|name| ClaimedRow { row: name, record: record(row) }))
}

/// A row that nobody can name must not hold up the others.
fn give_up_nameless(transaction: &Transaction<'_>, rowid: i64) -> Result<(), rusqlite::Error> {
    let sql =
        "UPDATE outbox SET status = 'dead', worker = NULL, last_err = 'the id is not UTF-8' WHERE rowid = ?1";
    transaction.execute(sql, [rowid])?;
    tracing::warn!("outbox: the row at {rowid} is given up: its id is not UTF-8");
    Ok(())
}

/// The record of a row, or what is wrong with it. Another language may have put anything into it.
fn record(row: &Row<'_>) -> Result<OutboxRecord, String> {
    let id = text(row, 0, "id")?.ok_or("the id is NULL")?;
    let topic = text(row, 1, "topic")?.ok_or("the topic is NULL")?;
    let payload = text(row, 2, "payload")?.ok_or("the payload is NULL")?;
    let payload =
        RawValue::from_string(payload).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let headers = match text(row, 3, "headers")? {
        None => BTreeMap::new(),
        Some(json) => serde_json::from_str(&json)
            .map_err(|error| format!("the headers are no JSON object of texts: {error}"))?,
    };
    let ts = row.get::<_, Option<i64>>(5).map_err(|error| format!("the ts is no whole number: {error}"))?;
    Ok(OutboxRecord { id: id_of_key(&id), topic, payload, headers, key: text(row, 4, "key")?, ts })
}

/// Text, also when it was put in as a blob.
fn text(row: &Row<'_>, column: usize, name: &str) -> Result<Option<String>, String> {
    match row.get_ref(column).map_err(|error| error.to_string())? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(format!("the {name} is not UTF-8")),
        },
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(format!("the {name} is a number, not a text")),
    }
}

/// Notes a failure. True: the row is given up; `None`: the worker does not hold it.
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
