//! A MongoDB store as its leader uses it. A process leads the store for a term; each term has a higher number than the one before.

use crate::engine::availability::Availability;
use crate::engine::catalog::Catalog;
use crate::engine::collections::Collections;
use crate::engine::derived::{self, Derived};
use crate::engine::options::MongoOptions;
use crate::engine::snapshots::{self, Snapshots};
use crate::engine::usage::UsageTable;
use crate::engine::writer::Writer;
use crate::errors::{is_outage, reason};
use mongodb::bson::{Bson, doc};
use mongodb::error::Result as MongoResult;
use parking_lot::Mutex;
use prombus::engine::{LeaseStore as _, TopicId};
use prombus::{Clock, ReadError};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the size of the store is queried.
const SIZE_INTERVAL: Duration = Duration::from_secs(30);
/// The time limit of writes other than commits.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long closing an engine waits for a write that is not a commit.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// A read without a response for this long has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A store in MongoDB that this process leads in a term.
pub struct MongoDatabase {
    pub(crate) collections: Collections,
    pub(crate) options: MongoOptions,
    pub(crate) term: u64,
    /// Identifies this engine as the writer of a commit; stored in the commit's fence (`fence.rs`).
    pub(crate) writer_token: [u8; 16],
    /// The bits that mark the ids which engines of this store generated.
    pub(crate) id_mark: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) availability: Availability,
    /// The state of commits. Locked during a commit, so commits do not overlap.
    pub(crate) writer: tokio::sync::Mutex<Writer>,
    /// The number and size of the events per topic.
    pub(crate) usage: UsageTable,
    /// The collections for people and tools.
    pub(crate) derived: Derived,
    pub(crate) snapshots: Snapshots,
    /// Held during background writes, so that closing the engine can wait for their end.
    background: tokio::sync::Mutex<()>,
    /// Whether the engine was closed, was deposed, or has failed. Background writes then stop.
    is_ended: AtomicBool,
    /// Per topic: retention has removed all events below this seq.
    pub(crate) cleaned_to: Mutex<HashMap<TopicId, u64>>,
    /// The last known size of the store, plus the bytes that were written since then.
    pub(crate) bytes: AtomicU64,
}

/// What identifies an engine, known before it takes over the store. The fields are those of [`MongoDatabase`].
pub(crate) struct Identity {
    pub(crate) term: u64,
    pub(crate) writer_token: [u8; 16],
    pub(crate) id_mark: u64,
}

impl MongoDatabase {
    pub(crate) fn new(
        collections: Collections,
        options: MongoOptions,
        identity: Identity,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let Identity { term, writer_token, id_mark } = identity;
        let empty = Catalog::new();
        Self {
            collections,
            options,
            term,
            writer_token,
            id_mark,
            clock,
            availability: Availability::new(),
            usage: UsageTable::new(&empty),
            derived: Derived::new(&empty, term),
            writer: tokio::sync::Mutex::new(Writer::new(empty, 0)),
            snapshots: Snapshots::default(),
            background: tokio::sync::Mutex::default(),
            is_ended: AtomicBool::new(false),
            cleaned_to: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }

    /// Sets the state that the takeover found.
    pub(crate) fn start_with(&mut self, writer: Writer, commits: u64) {
        self.usage = UsageTable::new(&writer.catalog);
        self.derived = Derived::new(&writer.catalog, self.term);
        self.snapshots = Snapshots::new(&self.options, commits);
        self.writer = tokio::sync::Mutex::new(writer);
    }

    /// A text that names the leader, for error messages.
    pub(crate) async fn leader_name(&self) -> String {
        let lease = crate::engine::lease::MongoLease::new(self.collections.clone());
        match lease.read().await {
            Ok(Some(record)) if !record.is_released() => {
                format!("the leader is {} (term {})", record.address, record.term)
            }
            _ => "the address of the leader is unknown".to_owned(),
        }
    }

    /// Repeats a read while the server is unreachable. A read that is refused or takes too long fails without affecting others.
    pub(crate) async fn reading<T, F>(&self, read: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = MongoResult<T>>,
    {
        loop {
            self.availability.wait().await;
            match tokio::time::timeout(READ_TIMEOUT, read()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) if is_outage(&error) => self.availability.failed(&reason(&error)),
                Ok(Err(error)) => return Err(ReadError::Io(reason(&error))),
                Err(_) => {
                    let why = format!("no answer from MongoDB within {} s", READ_TIMEOUT.as_secs());
                    return Err(ReadError::Io(why));
                }
            }
        }
    }

    /// Runs the background work: the probe, snapshots of the catalog, and the derived collections.
    pub(crate) async fn run_background(self: Arc<Self>) {
        tokio::join!(self.availability.run_probe(|| self.probe_writes()), self.run_writes());
    }

    /// Writes a document, to find out whether the server accepts writes again.
    async fn probe_writes(&self) -> Result<(), String> {
        let concern = self.options.driver_write_concern();
        let update = doc! { "$set": { "probed_by_term": self.term as i64 } };
        let leader = &self.collections.leader;
        let write = leader.update_one(doc! { "_id": "barrier" }, update).upsert(true).write_concern(concern);
        let probed = tokio::time::timeout(Duration::from_secs(5), async { write.await }).await;
        match probed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err("no answer".to_owned()),
        }
    }

    async fn run_writes(&self) {
        let mut size_due = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(derived::INTERVAL) => {}
                () = self.snapshots.changed.notified() => {}
            }
            let _turn = self.background.lock().await;
            if self.is_ended.load(Ordering::SeqCst) {
                return;
            }
            if self.availability.is_away() {
                continue;
            }
            let is_size_due = Instant::now() >= size_due;
            let writes = async {
                self.write_snapshot().await;
                if let Err(error) = self.derived.write(&self.collections).await {
                    tracing::debug!("topics and cursors will be written later: {}", reason(&error));
                }
                if is_size_due {
                    self.update_size().await;
                }
            };
            if tokio::time::timeout(BACKGROUND_TIMEOUT, writes).await.is_err() {
                self.availability.failed("no answer from MongoDB");
            }
            if is_size_due {
                size_due = Instant::now() + SIZE_INTERVAL;
            }
        }
    }

    async fn write_snapshot(&self) {
        let Some(wanted) = self.snapshots.take_wanted() else { return };
        if let Err(error) = snapshots::write(&self.collections, &self.options, &wanted).await {
            tracing::warn!("the state of topics and groups will be saved later: {}", reason(&error));
            self.snapshots.put_back(wanted);
        }
    }

    /// Stops background writes, and waits a limited time for those in progress.
    pub(crate) async fn end_background(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        let _ = tokio::time::timeout(END_TIMEOUT, self.background.lock()).await;
    }

    async fn update_size(&self) {
        let stats = doc! { "collStats": self.collections.events.name() };
        let Ok(stats) = self.collections.database.run_command(stats).await else { return };
        let bytes = match stats.get("totalSize").or_else(|| stats.get("storageSize")) {
            Some(Bson::Int32(bytes)) => i64::from(*bytes),
            Some(Bson::Int64(bytes)) => *bytes,
            Some(Bson::Double(bytes)) => *bytes as i64,
            _ => return,
        };
        self.bytes.store(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }
}
