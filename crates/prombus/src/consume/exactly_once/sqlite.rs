//! Exactly once with SQLite: what a handler writes and the mark of its event commit in one transaction.
//!
//! The order is what survives a crash: mark, effect, COMMIT, ack. Before COMMIT there is neither mark nor effect, and the event
//! comes again. After it there are both, and the event, if it comes again, finds its mark and is only acked.
//!
//! A mark goes when it has expired and its event is settled for good: one that may still be delivered keeps its mark, however
//! old it is.

mod transaction;

use super::Consumer;
use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::consume::dedupe::sqlite::SCHEMA;
use crate::consume::dedupe::{DEDUPE_TTL_MS, DedupeError};
use crate::consume::told_to_stop;
use crate::error::GroupError;
use crate::event::{Delivery, Event, Settling};
use crate::sqlite::{Database, DatabaseError};
use crate::subscribe::{HandlerHandle, Subscribe, Subscription};
use rusqlite::{Connection, Transaction, params};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use transaction::{Fate, Handler, Trouble, call, transact};

/// After trouble with the database it is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Marks are purged once in so many events, this many at most at a time.
const PURGE_EVERY: u64 = 1_000;

/// Runs handlers inside of transactions of a SQLite database. A handle: clones share the connection.
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
///     Ok::<(), String>(()) // now it commits, with the event's mark; then the event is acked
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
    ttl_ms: u64,
    events_per_transaction: u32,
}

impl SqliteExactlyOnce {
    /// Opens a database, or makes one, and the table `prombus_dedupe` in it.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DedupeError> {
        Ok(Self::over(Database::open(path.as_ref())?)?)
    }

    /// Takes a connection that is open. It is set to WAL and synchronous=FULL.
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

    /// How long a mark lives at least. Default: seven days.
    #[must_use]
    pub fn ttl_ms(mut self, ttl_ms: u64) -> Self {
        self.ttl_ms = ttl_ms;
        self
    }

    /// How many events go into one transaction at most, if there are as many. Default: 1. Each event still succeeds or fails
    /// on its own; a transaction that does not commit is tried again event by event.
    #[must_use]
    pub fn events_per_transaction(mut self, events: u32) -> Self {
        self.events_per_transaction = events.max(1);
        self
    }

    /// Where the time comes from, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs SQL on the connection, for the handler's own tables. Waits for the disk.
    ///
    /// # Errors
    /// See [`DedupeError`].
    pub fn setup(&self, sql: &str) -> Result<(), DedupeError> {
        Ok(self.database.with(|connection| connection.execute_batch(sql))?)
    }

    /// Calls a handler for each event that has no mark, one after the other and in the order of events, in a thread that may
    /// wait. Ok commits what it wrote and the mark together, and then acks; Err and a panic roll back and nack. The handler
    /// must not end the transaction itself; if it does, the event is nacked.
    ///
    /// Trouble with the database (it is locked, the disk is full) uses up no attempts: it is tried again after a second.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn handler<F, E>(&self, subscribe: Subscribe, handler: F) -> Result<HandlerHandle, GroupError>
    where
        F: Fn(&Event, &Transaction<'_>) -> Result<(), E> + Send + Sync + 'static,
        E: Display,
    {
        let handler = move |event: &Event, transaction: &Transaction<'_>| call(&handler, event, transaction);
        let mut worker = Worker {
            once: self.clone(),
            backend: Arc::clone(&subscribe.backend),
            consumer: Consumer::new(&subscribe),
            handler: Arc::new(handler),
            last_ack: None,
            since_purge: PURGE_EVERY,
        };
        // Each delivery is settled before the next is looked at: no more need be leased at once than go together.
        let subscription = match self.events_per_transaction {
            1 => subscribe.join().await?,
            events => subscribe.batch_size(events).join().await?,
        };
        Ok(HandlerHandle::spawn(subscription, |subscription, stopped| async move {
            worker.run(subscription, stopped).await;
        }))
    }
}

impl std::fmt::Debug for SqliteExactlyOnce {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SqliteExactlyOnce({} ms, {} events)", self.ttl_ms, self.events_per_transaction)
    }
}

/// One consumer at work.
struct Worker {
    once: SqliteExactlyOnce,
    backend: Arc<dyn Backend>,
    consumer: Consumer,
    handler: Arc<Handler>,
    /// When it is durable, all acks before it are.
    last_ack: Option<Settling>,
    since_purge: u64,
}

impl Worker {
    async fn run(&mut self, mut subscription: Subscription, mut stopped: watch::Receiver<bool>) {
        loop {
            let pulled = tokio::select! {
                biased;
                () = told_to_stop(&mut stopped) => break,
                pulled = self.pull(&mut subscription) => pulled,
            };
            match pulled {
                None => break,
                Some(Ok(deliveries)) => {
                    if !self.work(&deliveries).await {
                        tokio::select! {
                            () = told_to_stop(&mut stopped) => break,
                            () = tokio::time::sleep(RETRY_AFTER) => {}
                        }
                    }
                }
                Some(Err(error @ GroupError::Unavailable(_))) => {
                    tracing::error!("a handler ends: {error}");
                    break;
                }
                Some(Err(error)) => {
                    tracing::error!("a subscription cannot read: {error}");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
            self.purge_now_and_then().await;
        }
        let _ = subscription.unsubscribe().await;
    }

    /// The events of the next transaction.
    async fn pull(&self, subscription: &mut Subscription) -> Option<Result<Vec<Delivery>, GroupError>> {
        if self.once.events_per_transaction == 1 {
            return Some(subscription.next().await?.map(|delivery| vec![delivery]));
        }
        match subscription.next_batch().await {
            Ok(deliveries) => Some(Ok(deliveries.iter().collect())),
            Err(
                GroupError::Unavailable(crate::Unavailable::Closed)
                | GroupError::Deleted
                | GroupError::TakenOver,
            ) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Does events and settles them. False: the database did not work, and they are given back.
    async fn work(&mut self, deliveries: &[Delivery]) -> bool {
        let fates = self.commit(deliveries).await;
        if fates.is_err() && deliveries.len() > 1 {
            // One of them may have spoiled the transaction for all.
            for (at, delivery) in deliveries.iter().enumerate() {
                let one = self.commit(std::slice::from_ref(delivery)).await;
                if !self.settle(std::slice::from_ref(delivery), one) {
                    deliveries[at + 1..].iter().for_each(Delivery::release);
                    return false;
                }
            }
            return true;
        }
        self.settle(deliveries, fates)
    }

    fn settle(&mut self, deliveries: &[Delivery], fates: Result<Vec<Fate>, Trouble>) -> bool {
        self.since_purge += deliveries.len() as u64;
        let fates = match fates {
            Ok(fates) => fates,
            Err(Trouble::Handler(error)) => vec![Err(error); deliveries.len()],
            Err(Trouble::Database(error)) => {
                tracing::error!("the database of {} failed: {error}", self.consumer.group);
                deliveries.iter().for_each(Delivery::release);
                return false;
            }
        };
        for (delivery, fate) in deliveries.iter().zip(fates) {
            match fate {
                Ok(()) => self.last_ack = Some(delivery.ack()),
                Err(error) => {
                    tracing::warn!("{} seq {}: {error}", delivery.topic(), delivery.seq());
                    drop(delivery.nack(&error));
                }
            }
        }
        true
    }

    /// Does events in a transaction of their own. When this answers, what was done is durable.
    async fn commit(&self, deliveries: &[Delivery]) -> Result<Vec<Fate>, Trouble> {
        let now = self.once.clock.wall_ms();
        let expires_ms = now.saturating_add(i64::try_from(self.once.ttl_ms).unwrap_or(i64::MAX));
        let events: Vec<(Event, String)> = deliveries
            .iter()
            .map(|delivery| (delivery.event().clone(), self.consumer.of(delivery.topic())))
            .collect();
        let handler = Arc::clone(&self.handler);
        let commit =
            move |connection: &mut Connection| Ok(transact(connection, &events, expires_ms, &*handler));
        match self.once.database.call(commit).await {
            Ok(fates) => fates,
            Err(DatabaseError::Sqlite(error)) => Err(Trouble::of(&error)),
            Err(other) => Err(Trouble::Database(other.to_string())),
        }
    }

    /// Deletes marks of events that are settled for good. What is not done now is done another time.
    async fn purge_now_and_then(&mut self) {
        if self.since_purge < PURGE_EVERY {
            return;
        }
        self.since_purge = 0;
        // The floor counts acks that a power cut could take back; wait for those.
        if let Some(ack) = self.last_ack.take()
            && ack.await.is_err()
        {
            return;
        }
        let Ok(Some(info)) = self.backend.group(&self.consumer.subscription, &self.consumer.group).await
        else {
            return;
        };
        let now = self.once.clock.wall_ms();
        let floors: Vec<(String, String, i64)> = info
            .topics
            .iter()
            .map(|place| (place.topic.to_string(), self.consumer.of(&place.topic), place.floor.cast_signed()))
            .collect();
        let purge = move |connection: &mut Connection| {
            let sql = "DELETE FROM prombus_dedupe WHERE (topic, consumer, id) IN (
                SELECT topic, consumer, id FROM prombus_dedupe
                WHERE expires_ms <= ?1 AND topic = ?2 AND consumer = ?3 AND seq <= ?4 LIMIT ?5)";
            for (topic, consumer, floor) in floors {
                let mut statement = connection.prepare_cached(sql)?;
                statement.execute(params![now, topic, consumer, floor, PURGE_EVERY.cast_signed() * 2])?;
            }
            Ok(())
        };
        if let Err(error) = self.once.database.call(purge).await {
            tracing::warn!("expired marks stay for now: {error}");
        }
    }
}
