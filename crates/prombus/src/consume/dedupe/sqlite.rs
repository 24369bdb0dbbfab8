//! Marks in a SQLite table. [`SqliteExactlyOnce`](crate::consume::exactly_once::SqliteExactlyOnce) uses the same table; its
//! marks have a seq, and it purges them itself.

use super::{DedupeError, DedupeStore, expires_ms};
use crate::box_future::BoxFuture;
use crate::clock::{Clock, SystemClock};
use crate::sqlite::Database;
use prombus_protocol::Uuid;
use rusqlite::{Connection, OptionalExtension as _, params};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The table of marks. A mark without a seq may be deleted when it has expired; a mark with a seq only when its event is
/// settled too.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS prombus_dedupe (
  topic TEXT NOT NULL,
  consumer TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER,
  expires_ms INTEGER NOT NULL,
  PRIMARY KEY (topic, consumer, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS prombus_dedupe_expires ON prombus_dedupe (expires_ms);
";

/// Each time this many marks were added, up to this many expired marks are deleted.
const PURGE_EVERY: u64 = 1_000;

/// Marks in a SQLite database, in the table `prombus_dedupe`. The database may be the program's own.
///
/// ```
/// use prombus::consume::dedupe::SqliteDedupe;
/// # let folder = std::env::temp_dir().join(format!("prombus-dedupe-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let marks = SqliteDedupe::open(folder.join("billing.db"))?;
/// # drop(marks);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteDedupe {
    database: Database,
    clock: ClockHandle,
    /// How many marks were added.
    marked: AtomicU64,
}

struct ClockHandle(Arc<dyn Clock>);

impl std::fmt::Debug for ClockHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Clock")
    }
}

impl SqliteDedupe {
    /// Opens the database, and creates it and the table if they do not exist.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DedupeError> {
        let database = Database::open(path.as_ref())?;
        database.with(|connection| connection.execute_batch(SCHEMA))?;
        let clock = ClockHandle(Arc::new(SystemClock::default()));
        Ok(Self { database, clock, marked: AtomicU64::new(0) })
    }

    /// The source of time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = ClockHandle(clock);
        self
    }

    /// Deletes at most 1,000 expired marks and returns how many it deleted. Every 1,000th call of `mark` does this too.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub async fn purge(&self) -> Result<usize, DedupeError> {
        let now = self.clock.0.wall_ms();
        Ok(self.database.call(move |connection| purge(connection, now)).await?)
    }
}

fn purge(connection: &Connection, now_ms: i64) -> Result<usize, rusqlite::Error> {
    let sql = "DELETE FROM prombus_dedupe WHERE (topic, consumer, id) IN (
        SELECT topic, consumer, id FROM prombus_dedupe WHERE expires_ms <= ?1 AND seq IS NULL LIMIT ?2)";
    connection.prepare_cached(sql)?.execute(params![now_ms, PURGE_EVERY as i64])
}

impl DedupeStore for SqliteDedupe {
    fn seen<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
    ) -> BoxFuture<'a, Result<bool, DedupeError>> {
        let (topic, group, now) = (topic.to_owned(), group.to_owned(), self.clock.0.wall_ms());
        Box::pin(async move {
            let sql = "SELECT 1 FROM prombus_dedupe
                WHERE topic = ?1 AND consumer = ?2 AND id = ?3 AND expires_ms > ?4";
            let find = move |connection: &mut Connection| {
                let mut statement = connection.prepare_cached(sql)?;
                statement.query_row(params![topic, group, id.to_string(), now], |_| Ok(())).optional()
            };
            Ok(self.database.call(find).await?.is_some())
        })
    }

    fn mark<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>> {
        let (topic, group, now) = (topic.to_owned(), group.to_owned(), self.clock.0.wall_ms());
        let is_time_to_purge = self.marked.fetch_add(1, Ordering::Relaxed) % PURGE_EVERY == 0;
        Box::pin(async move {
            let sql = "INSERT INTO prombus_dedupe (topic, consumer, id, expires_ms) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT DO UPDATE SET expires_ms = excluded.expires_ms WHERE expires_ms <= ?5";
            let add = move |connection: &mut Connection| {
                if is_time_to_purge {
                    purge(connection, now)?;
                }
                let mut statement = connection.prepare_cached(sql)?;
                statement.execute(params![topic, group, id.to_string(), expires_ms(now, ttl_ms), now])
            };
            self.database.call(add).await?;
            Ok(())
        })
    }
}
