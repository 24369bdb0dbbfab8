//! The store in MongoDB as its leader uses it.

use crate::availability::Availability;
use crate::catalog::Catalog;
use crate::collections::Collections;
use crate::derived::{self, Derived};
use crate::errors::reason;
use crate::options::MongoOptions;
use crate::snapshots::{self, Snapshots};
use crate::usage::UsageTable;
use crate::writer::Writer;
use mongodb::bson::{Bson, doc};
use mongodb::error::Result as MongoResult;
use parking_lot::Mutex;
use prombus::Clock;
use prombus::engine::{LeaseStore as _, TopicId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the size of the store is asked for.
const SIZE_INTERVAL: Duration = Duration::from_secs(30);
/// Without an answer for this long, a read is repeated.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A store in MongoDB that this process leads in a term.
pub struct MongoDatabase {
    pub(crate) collections: Collections,
    pub(crate) options: MongoOptions,
    pub(crate) term: u64,
    /// Tells this engine's fences from those of others.
    pub(crate) writer_token: [u8; 16],
    pub(crate) id_mark: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) availability: Availability,
    /// Used by one commit at a time.
    pub(crate) writer: tokio::sync::Mutex<Writer>,
    pub(crate) usage: UsageTable,
    pub(crate) derived: Derived,
    pub(crate) snapshots: Snapshots,
    /// Up to which seqs retention has removed events.
    pub(crate) cleaned_to: Mutex<HashMap<TopicId, u64>>,
    /// The size of the store as the server told it last, and what was written since.
    pub(crate) bytes: AtomicU64,
}

/// What is known before the store was taken over.
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
            cleaned_to: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }

    /// What the takeover found.
    pub(crate) fn start_with(&mut self, writer: Writer, commits: u64) {
        self.usage = UsageTable::new(&writer.catalog);
        self.derived = Derived::new(&writer.catalog, self.term);
        self.snapshots = Snapshots::new(commits);
        self.writer = tokio::sync::Mutex::new(writer);
    }

    /// Who leads, for messages.
    pub(crate) async fn leader_name(&self) -> String {
        let lease = crate::lease::MongoLease::new(self.collections.clone());
        match lease.read().await {
            Ok(Some(record)) if !record.is_released() => format!("{} (term {})", record.address, record.term),
            _ => "a process whose address is not known".to_owned(),
        }
    }

    /// Repeats a read until it succeeds. While the server is away it waits.
    pub(crate) async fn reading<T, F>(&self, read: impl Fn() -> F) -> T
    where
        F: Future<Output = MongoResult<T>>,
    {
        loop {
            self.availability.wait().await;
            let failed = match tokio::time::timeout(READ_TIMEOUT, read()).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => reason(&error),
                Err(_) => format!("no answer from MongoDB within {} s", READ_TIMEOUT.as_secs()),
            };
            self.availability.failed(&failed);
        }
    }

    /// What runs beside commits: the probe, snapshots, and the collections for people.
    pub(crate) async fn run_background(self: Arc<Self>) {
        tokio::join!(self.availability.run_probe(|| self.probe_writes()), self.run_writes());
    }

    /// Whether the server takes writes again.
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
            if self.availability.is_away() {
                continue;
            }
            if let Some(wanted) = self.snapshots.take_wanted()
                && let Err(error) = snapshots::write(&self.collections, &self.options, &wanted).await
            {
                tracing::warn!("a snapshot was not written: {}", reason(&error));
            }
            if let Err(error) = self.derived.write(&self.collections).await {
                tracing::debug!("topics and cursors are written later: {}", reason(&error));
            }
            if Instant::now() >= size_due {
                size_due = Instant::now() + SIZE_INTERVAL;
                self.update_size().await;
            }
        }
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
