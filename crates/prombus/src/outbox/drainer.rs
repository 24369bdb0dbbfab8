//! The drainer: claims rows, publishes them, and marks them, in a loop.
//!
//! The order is claim, publish, mark. A crash after the publish leaves the row claimed. When its lease has expired, the row
//! is claimed again, published under the same id (which adds nothing), and marked.

use super::{ClaimedRow, FailedRow, OutboxError, OutboxPublisher, OutboxRecord, OutboxStore, PublishFailure};
use crate::consume::told_to_stop;
use crate::delivery::backoff_ms;
use crate::error::with_causes;
use crate::failure_log::FailureLog;
use prombus_protocol::{AfterFailure, HandlerFailure, JsonError, check_topic, push_json};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The default of [`OutboxDrainer::batch_size`].
const BATCH_SIZE: u32 = 100;
/// The default of [`OutboxDrainer::interval`].
const INTERVAL: Duration = Duration::from_millis(250);
/// The default of [`OutboxDrainer::lease_ms`].
const LEASE_MS: u64 = 30_000;
/// How often old rows are deleted.
const PURGE_INTERVAL: Duration = Duration::from_secs(60);

/// Counters of a drainer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainerCounts {
    /// Events that were added.
    pub published: u64,
    /// Rows whose event was already in the topic.
    pub duplicates: u64,
    /// Attempts that failed.
    pub errors: u64,
    /// Rows that were given up.
    pub dead: u64,
    /// Rows that were taken back from workers whose lease had expired.
    pub requeued: u64,
}

#[derive(Debug, Default)]
struct Counters {
    published: AtomicU64,
    duplicates: AtomicU64,
    errors: AtomicU64,
    dead: AtomicU64,
    requeued: AtomicU64,
}

/// Publishes the rows of an outbox. A single drainer keeps the order of rows within each topic, except for rows that are
/// retried. Several drainers share the work, and their batches may overtake each other.
///
/// ```
/// use prombus::Bus;
/// use prombus::outbox::{OutboxDrainer, OutboxRecord, SqliteOutbox};
/// use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("prombus-outbox-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("shop.db");
/// # let bus = Bus::memory();
/// let outbox = SqliteOutbox::open(&path)?;
///
/// // The service: its business data and the event, in one transaction of its own connection.
/// let mut shop = rusqlite::Connection::open(&path)?;
/// shop.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, item INTEGER)")?;
/// # let id = prombus::Uuid::from_u128(1);
/// let transaction = shop.transaction()?;
/// transaction.execute("INSERT INTO orders VALUES (?1, 7)", [id.to_string()])?;
/// SqliteOutbox::add(&transaction, &OutboxRecord::new(id, "orders", &serde_json::json!({"item": 7}))?)?;
/// transaction.commit()?;
///
/// // The drainer, here or in another process.
/// let drainer = OutboxDrainer::new(Arc::new(outbox), Arc::new(bus)).spawn();
/// # while drainer.counts().published == 0 { tokio::time::sleep(std::time::Duration::from_millis(5)).await; }
/// let counts = drainer.stop().await;
/// assert_eq!(counts.published, 1);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(()) }
/// ```
#[must_use = "a drainer works when it is spawned or run"]
pub struct OutboxDrainer {
    store: Arc<dyn OutboxStore>,
    publisher: Arc<dyn OutboxPublisher>,
    /// The drainer's name in the rows that it holds.
    worker: String,
    /// The most rows that are published together.
    batch_size: u32,
    /// How long it waits when no row is due.
    interval: Duration,
    /// How long it holds a batch of rows.
    lease_ms: u64,
    counters: Arc<Counters>,
    failures: Arc<FailureLog>,
}

/// The result of a pass over the outbox.
enum Pass {
    /// More rows may be due.
    More,
    /// No row is due.
    Idle,
    /// Nothing can be published, or the outbox failed.
    Stuck(String),
}

impl OutboxDrainer {
    /// A drainer that moves rows from a store to a publisher.
    pub fn new(store: Arc<dyn OutboxStore>, publisher: Arc<dyn OutboxPublisher>) -> Self {
        Self {
            store,
            publisher,
            worker: unique_name(),
            batch_size: BATCH_SIZE,
            interval: INTERVAL,
            lease_ms: LEASE_MS,
            counters: Arc::default(),
            failures: Arc::new(FailureLog::new("outbox")),
        }
    }

    /// The drainer's name in the rows that it holds. No two running drainers may have the same name. Default: a unique name.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = name.into();
        self
    }

    /// The most rows that are published together. Default: 100.
    pub fn batch_size(mut self, rows: u32) -> Self {
        self.batch_size = rows.max(1);
        self
    }

    /// How long it waits when no row is due. Default: 250 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Duration::from_millis(1));
        self
    }

    /// How long it holds a batch of rows before other drainers may claim them. Default: 30 s.
    pub fn lease_ms(mut self, lease_ms: u64) -> Self {
        self.lease_ms = lease_ms.max(1);
        self
    }

    /// Calls a function for each failure: a row that cannot be published, with its id in [`HandlerFailure::row`], and a store or
    /// a bus that cannot be used. Like [`HandlerHandle::on_error`](crate::HandlerHandle::on_error).
    pub fn on_error(self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) -> Self {
        self.failures.on_error(callback);
        self
    }

    /// The counters of the drainer.
    pub fn counts(&self) -> DrainerCounts {
        self.counters.get()
    }

    /// Publishes due rows, batch after batch, until none is left or nothing can be published.
    ///
    /// # Errors
    /// Why it could not continue. Rows that were not published are due again, at the latest when their lease has expired.
    pub async fn drain(&self) -> Result<DrainerCounts, OutboxError> {
        loop {
            match self.pass().await {
                Pass::More => {}
                Pass::Idle => return Ok(self.counts()),
                Pass::Stuck(why) => return Err(OutboxError::Other(why)),
            }
        }
    }

    /// Drains until `shutdown` resolves. The current batch is finished before this returns.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> DrainerCounts {
        let mut shutdown = std::pin::pin!(shutdown);
        let (mut stuck, mut idle) = (0_u32, 0_u32);
        let mut reported: Option<String> = None;
        let mut purged: Option<Instant> = None;
        loop {
            if purged.is_none_or(|at| at.elapsed() >= PURGE_INTERVAL) {
                purged = Some(Instant::now());
                if let Err(error) = self.store.purge_sent().await {
                    tracing::warn!("outbox: cannot delete sent rows, will retry: {}", with_causes(&error));
                }
            }
            let pass = self.pass().await;
            if let Pass::Stuck(why) = &pass {
                if reported.as_ref() != Some(why) {
                    let error = format!("cannot publish: {why}");
                    self.failures.report(&HandlerFailure::general(error, AfterFailure::Retry));
                    reported = Some(why.clone());
                }
                stuck += 1;
            }
            if stuck > 0 && !matches!(pass, Pass::Stuck(_)) {
                tracing::info!("outbox: publishing again");
                (stuck, reported) = (0, None);
            }
            idle = if matches!(pass, Pass::Idle) { idle.saturating_add(1) } else { 0 };
            let pause = async {
                match pass {
                    Pass::More => tokio::task::yield_now().await,
                    Pass::Idle => self.store.wait_for_rows(self.interval, idle).await,
                    Pass::Stuck(_) => {
                        let wait = backoff_ms(stuck, u64::from(std::process::id()));
                        tokio::time::sleep(Duration::from_millis(wait)).await;
                    }
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => return self.counts(),
                () = pause => {}
            }
        }
    }

    /// Drains in a task, until [`DrainerHandle::stop`].
    ///
    /// # Panics
    /// If called outside a tokio runtime.
    pub fn spawn(self) -> DrainerHandle {
        let (stop, mut stopped) = watch::channel(false);
        let (counters, failures) = (Arc::clone(&self.counters), Arc::clone(&self.failures));
        let task =
            tokio::spawn(async move { self.run_until(async { told_to_stop(&mut stopped).await }).await });
        DrainerHandle { stop, task, counters, failures }
    }

    async fn pass(&self) -> Pass {
        match self.try_pass().await {
            Ok(pass) => pass,
            Err(error) => Pass::Stuck(with_causes(&error)),
        }
    }

    async fn try_pass(&self) -> Result<Pass, OutboxError> {
        let requeued = self.store.requeue_expired().await?;
        self.counters.requeued.fetch_add(requeued, Ordering::Relaxed);
        let claimed = self.store.claim_batch(&self.worker, self.batch_size, self.lease_ms).await?;
        if claimed.is_empty() {
            return Ok(Pass::Idle);
        }
        let mut outcome = Outcome::default();
        let (mut rows, mut records) = (Vec::new(), Vec::new());
        for ClaimedRow { row, record } in claimed {
            match record.and_then(check) {
                Ok(record) => {
                    rows.push(row);
                    records.push(record);
                }
                Err(error) => outcome.failed.push(FailedRow { row, error, is_permanent: true }),
            }
        }
        let results = match records.is_empty() {
            true => Vec::new(),
            false => self.publisher.publish(&records).await,
        };
        let mut results = results.into_iter();
        for row in rows {
            let missing =
                || Err(PublishFailure::Retry("the publisher returned no result for this row".to_owned()));
            match results.next().unwrap_or_else(missing) {
                Ok(published) => {
                    let counter = if published.duplicate {
                        &self.counters.duplicates
                    } else {
                        &self.counters.published
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    outcome.sent.push(row);
                }
                Err(PublishFailure::Permanent(error)) => {
                    outcome.failed.push(FailedRow { row, error, is_permanent: true });
                }
                Err(PublishFailure::Retry(error)) => {
                    outcome.failed.push(FailedRow { row, error, is_permanent: false });
                }
                Err(PublishFailure::Unavailable(why)) => {
                    outcome.released.push(row);
                    outcome.why_released = Some(why);
                }
            }
        }
        self.note(outcome).await
    }

    async fn note(&self, outcome: Outcome) -> Result<Pass, OutboxError> {
        let Outcome { sent, failed, released, why_released } = outcome;
        if !sent.is_empty() {
            self.store.mark_sent(&self.worker, &sent).await?;
        }
        if !failed.is_empty() {
            let became = self.store.mark_error(&self.worker, &failed).await?;
            let dead = became.dead.len() as u64;
            self.counters.errors.fetch_add(became.retried + dead, Ordering::Relaxed);
            self.counters.dead.fetch_add(dead, Ordering::Relaxed);
            for FailedRow { row, error, .. } in failed {
                let is_dead = became.dead.contains(&row);
                let next = if is_dead { AfterFailure::DeadLetter } else { AfterFailure::Retry };
                self.failures.report(&HandlerFailure::of_row(row, error, next));
            }
        }
        match why_released {
            None => Ok(Pass::More),
            Some(why) => {
                self.store.release(&self.worker, &released, &why).await?;
                Ok(Pass::Stuck(why))
            }
        }
    }
}

impl std::fmt::Debug for OutboxDrainer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "OutboxDrainer({}, {:?})", self.worker, self.counts())
    }
}

#[derive(Default)]
struct Outcome {
    /// Rows that were published.
    sent: Vec<String>,
    failed: Vec<FailedRow>,
    /// Rows that were not tried, because nothing can be published at present.
    released: Vec<String>,
    /// Why rows are released; `None` if none are.
    why_released: Option<String>,
}

impl Counters {
    fn get(&self) -> DrainerCounts {
        DrainerCounts {
            published: self.published.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            dead: self.dead.load(Ordering::Relaxed),
            requeued: self.requeued.load(Ordering::Relaxed),
        }
    }
}

/// Checks a record locally, so that invalid ones are not sent to the publisher.
fn check(record: OutboxRecord) -> Result<OutboxRecord, String> {
    check_topic(&record.topic).map_err(|error| error.to_string())?;
    record.options().check().map_err(|error| error.to_string())?;
    let checked: Result<(), JsonError> = push_json(&mut Vec::new(), record.payload.get().as_bytes());
    checked.map_err(|error| format!("the payload is {error}"))?;
    Ok(record)
}

/// A name that no other drainer has, in any process.
fn unique_name() -> String {
    // `RandomState` is seeded with the system's randomness.
    let random = std::hash::RandomState::new();
    format!("{}-{:016x}", std::process::id(), random.hash_one(std::process::id()))
}

/// The handle of a running drainer. Dropping it does not stop the drainer.
#[derive(Debug)]
pub struct DrainerHandle {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<DrainerCounts>,
    counters: Arc<Counters>,
    failures: Arc<FailureLog>,
}

impl DrainerHandle {
    /// The counters of the drainer.
    pub fn counts(&self) -> DrainerCounts {
        self.counters.get()
    }

    /// Calls a function for each failure; see [`OutboxDrainer::on_error`]. If there was a failure before, the function is called
    /// with the last one at once.
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Takes no more rows, waits for the current batch, and stops.
    pub async fn stop(self) -> DrainerCounts {
        let _ = self.stop.send(true);
        if let Err(error) = self.task.await {
            tracing::error!("the task of an outbox drainer ended early: {error}");
        }
        self.counters.get()
    }
}
