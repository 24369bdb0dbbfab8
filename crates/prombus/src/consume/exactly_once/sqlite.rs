//! Exactly-once with SQLite: the handler's writes and the mark of its event commit in one transaction.
//!
//! `in_transactions.rs` drives the consumer; this file implements its [`EffectStore`] with SQLite.
//!
//! A mark is deleted when it has expired and its event is durably settled. An event that may still be delivered keeps its
//! mark, however old the mark is.

mod transaction;

use super::in_transactions::{EffectStore, EventFate, EventOnce, SettledEvents, TransactionTrouble};
use crate::box_future::BoxFuture;
use crate::clock::{Clock, SystemClock};
use crate::consume::dedupe::sqlite::SCHEMA;
use crate::consume::dedupe::{DEDUPE_TTL_MS, DedupeError};
use crate::error::GroupError;
use crate::event::Event;
use crate::sqlite::{Database, DatabaseError};
use crate::subscribe::{HandlerHandle, Subscribe};
use rusqlite::{Connection, Transaction, params};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use transaction::{Handler, call, transact, trouble};

/// The most marks of a topic that are deleted at a time.
const PURGE_MARKS: i64 = 2_000;

/// Runs handlers inside transactions of a SQLite database. Clones share the connection.
///
/// ```
/// use prombus::Bus;
/// use prombus::consume::exactly_once::SqliteExactlyOnce;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("prombus-once-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let bus = Bus::memory();
/// let ledger = SqliteExactlyOnce::open(folder.join("ledger.db"))?;
/// ledger.setup("CREATE TABLE IF NOT EXISTS ledger (entry INTEGER PRIMARY KEY, amount INTEGER NOT NULL)")?;
/// let payments = bus.subscribe("payments", "ledger").from_earliest();
/// let running = ledger.handler(payments, |event, transaction| {
///     let amount: i64 = event.json().map_err(|error| error.to_string())?;
///     transaction.execute("INSERT INTO ledger (amount) VALUES (?1)", [amount])
///         .map_err(|error| error.to_string())?;
///     Ok::<(), String>(()) // commits with the event's mark; then the event is acked
/// }).await?;
/// running.unsubscribe().await?;
/// # drop(ledger);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteExactlyOnce {
    database: Database,
    clock: Arc<dyn Clock>,
    /// How long a mark is kept at least.
    ttl_ms: u64,
    /// The most events in one transaction.
    events_per_transaction: u32,
}

impl SqliteExactlyOnce {
    /// Opens the database, and creates it and its table `prombus_dedupe` if they do not exist.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DedupeError> {
        Ok(Self::over(Database::open(path.as_ref())?)?)
    }

    /// Uses an open connection. Sets it to WAL mode and synchronous=FULL.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn with_connection(connection: Connection) -> Result<Self, DedupeError> {
        Ok(Self::over(Database::over(connection)?)?)
    }

    fn over(database: Database) -> Result<Self, rusqlite::Error> {
        database.with(|connection| connection.execute_batch(SCHEMA))?;
        let clock = Arc::new(SystemClock::default());
        Ok(Self { database, clock, ttl_ms: DEDUPE_TTL_MS, events_per_transaction: 1 })
    }

    /// How long a mark is kept at least. Default: seven days.
    #[must_use]
    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// The most events in one transaction. Default: 1. Each event still succeeds or fails on its own; if a transaction does
    /// not commit, its events are retried one by one.
    #[must_use]
    pub fn events_per_transaction(mut self, events: u32) -> Self {
        self.events_per_transaction = events.max(1);
        self
    }

    /// The source of time, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs SQL on the connection, to create the handler's own tables. Blocks on the disk.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn setup(&self, sql: &str) -> Result<(), DedupeError> {
        Ok(self.database.with(|connection| connection.execute_batch(sql))?)
    }

    /// Calls a handler for each event that has no mark, one after the other and in order, in a thread that may block. `Ok`
    /// commits the handler's writes together with the mark, then acks. `Err` or a panic rolls back and nacks. The handler
    /// must not end the transaction itself; if it does, the event is nacked.
    ///
    /// A database error (for example, the database is locked or the disk is full) uses up no attempts: the event is tried
    /// again after a second.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub async fn handler<F, E>(&self, subscribe: Subscribe, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(&Event, &Transaction<'_>) -> Result<(), E> + Send + Sync + 'static,
        E: Display,
    {
        let handler = move |event: &Event, transaction: &Transaction<'_>| call(&handler, event, transaction);
        let effects = SqliteEffects { once: self.clone(), handler: Arc::new(handler) };
        subscribe.in_transactions(Arc::new(effects)).await
    }
}

impl std::fmt::Debug for SqliteExactlyOnce {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SqliteExactlyOnce({} ms, {} events)", self.ttl_ms, self.events_per_transaction)
    }
}

/// A handler and the database that it writes to.
struct SqliteEffects {
    once: SqliteExactlyOnce,
    handler: Arc<Handler>,
}

impl EffectStore for SqliteEffects {
    fn events_per_transaction(&self) -> u32 {
        self.once.events_per_transaction
    }

    fn commit<'a>(
        &'a self,
        events: &'a [EventOnce],
    ) -> BoxFuture<'a, Result<Vec<EventFate>, TransactionTrouble>> {
        let now = self.once.clock.wall_ms();
        let expires_ms = now.saturating_add(i64::try_from(self.once.ttl_ms).unwrap_or(i64::MAX));
        let (events, handler) = (events.to_vec(), Arc::clone(&self.handler));
        let commit =
            move |connection: &mut Connection| Ok(transact(connection, &events, expires_ms, &*handler));
        Box::pin(async move {
            match self.once.database.call(commit).await {
                Ok(fates) => fates,
                Err(DatabaseError::Sqlite(error)) => Err(trouble(&error)),
                Err(other) => Err(TransactionTrouble::Database(other.to_string())),
            }
        })
    }

    fn forget(&self, settled: Vec<SettledEvents>) -> BoxFuture<'_, Result<(), String>> {
        let now = self.once.clock.wall_ms();
        let purge = move |connection: &mut Connection| {
            let sql = "DELETE FROM prombus_dedupe WHERE (topic, consumer, id) IN (
                SELECT topic, consumer, id FROM prombus_dedupe
                WHERE expires_ms <= ?1 AND topic = ?2 AND consumer = ?3 AND seq <= ?4 LIMIT ?5)";
            for SettledEvents { topic, consumer, last_seq } in settled {
                let mut statement = connection.prepare_cached(sql)?;
                let last_seq = last_seq.cast_signed();
                statement.execute(params![now, topic.as_str(), consumer, last_seq, PURGE_MARKS])?;
            }
            Ok(())
        };
        Box::pin(async move { self.once.database.call(purge).await.map_err(|error| error.to_string()) })
    }
}
