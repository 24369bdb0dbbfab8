//! Snapshots of the catalog, split into pieces that fit a document. They keep takeovers short: only commits after the newest snapshot are
//! read.
//!
//! **Invariant:** a snapshot is the result of all commits up to its number, so it stays valid whichever process wrote it. Fences and
//! records are removed only after a snapshot that replaces them is durable.

use crate::engine::bulk::Plan;
use crate::engine::catalog::Catalog;
use crate::engine::collections::Collections;
use crate::engine::keys::{FENCES, RECORDS, bson_key};
use crate::engine::options::MongoOptions;
use crate::engine::writer::Writer;
use futures_util::TryStreamExt as _;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, doc};
use mongodb::error::Result as MongoResult;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The maximum size of one document.
const PIECE_BYTES: usize = 8 << 20;
/// A snapshot is due after this many bytes of records, whatever the number of commits.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Decides when a snapshot is due, and holds the snapshot to write.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    /// A snapshot is due after this many commits.
    commits_max: u64,
    since: Mutex<Since>,
    /// The snapshot to write.
    wanted: Mutex<Option<Wanted>>,
    /// Notified when a snapshot is due.
    pub(crate) changed: Notify,
}

/// The changes that were committed after the newest snapshot.
#[derive(Debug, Default)]
struct Since {
    commits: u64,
    record_bytes: usize,
}

/// A snapshot to write.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The number of the last commit that it contains.
    number: u64,
    /// The encoded catalog.
    bytes: Vec<u8>,
}

impl Snapshots {
    /// Starts with the number of commits since the newest snapshot.
    pub(crate) fn new(options: &MongoOptions, commits: u64) -> Self {
        let since = Mutex::new(Since { commits, record_bytes: 0 });
        Self { commits_max: options.snapshot_commits, since, ..Self::default() }
    }

    pub(crate) fn note_commit(&self, writer: &Writer, plan: &Plan) {
        let mut since = self.since.lock();
        since.commits += 1;
        since.record_bytes += plan.records.iter().map(|record| record.body.len() + 8).sum::<usize>();
        if since.commits < self.commits_max && since.record_bytes < RECORD_BYTES_MAX {
            return;
        }
        *since = Since::default();
        *self.wanted.lock() = Some(Wanted { number: plan.fence.number, bytes: writer.catalog.to_bytes() });
        self.changed.notify_one();
    }

    pub(crate) fn take_wanted(&self) -> Option<Wanted> {
        self.wanted.lock().take()
    }

    /// Puts back a snapshot that could not be written, unless a newer one is due.
    pub(crate) fn put_back(&self, wanted: Wanted) {
        self.wanted.lock().get_or_insert(wanted);
    }
}

/// Writes a snapshot, then removes the fences and records that it replaces.
pub(crate) async fn write(
    collections: &Collections,
    options: &MongoOptions,
    wanted: &Wanted,
) -> MongoResult<()> {
    let concern = || options.driver_write_concern();
    let number = wanted.number as i64;
    let pieces: Vec<&[u8]> = wanted.bytes.chunks(PIECE_BYTES).collect();
    for (piece, bytes) in pieces.iter().enumerate() {
        let id = doc! { "n": number, "piece": piece as i32 };
        let data = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() });
        let document = doc! { "_id": id.clone(), "pieces": pieces.len() as i32, "data": data };
        let replace = collections.snapshots.replace_one(doc! { "_id": id }, document);
        replace.upsert(true).write_concern(concern()).await?;
    }
    let events = &collections.events;
    let records = doc! { "_id": {
        "$gte": bson_key(RECORDS, 0),
        // The records of the newest commit are kept: they show a takeover that the commit is whole.
        "$lt": bson_key(RECORDS, wanted.number * crate::engine::bulk::RECORD_PIECES_MAX),
    } };
    events.delete_many(records).write_concern(concern()).await?;
    // Numbers that a deposed leader may still use must stay taken: see `fence.rs`.
    let fences = doc! {
        "_id": { "$gte": bson_key(FENCES, 0), "$lt": bson_key(FENCES, wanted.number) },
        "records": { "$gt": 0 },
        "keep": { "$ne": true },
    };
    events.delete_many(fences).write_concern(concern()).await?;
    collections.snapshots.delete_many(doc! { "_id.n": { "$lt": number } }).write_concern(concern()).await?;
    tracing::debug!("wrote the snapshot of commit {number}: {} bytes", wanted.bytes.len());
    Ok(())
}

/// Reads the newest complete snapshot and its commit number.
///
/// # Errors
/// Errors of the driver, or the snapshot cannot be read.
pub(crate) async fn read(collections: &Collections) -> Result<Option<(u64, Catalog)>, SnapshotError> {
    let mut below = i64::MAX;
    loop {
        let newest = collections.snapshots.find_one(doc! { "_id.n": { "$lt": below } });
        let Some(newest) = newest.sort(doc! { "_id": -1 }).projection(doc! { "data": 0 }).await? else {
            return Ok(None);
        };
        let number = newest.get_document("_id").and_then(|id| id.get_i64("n"));
        let (Ok(number), Ok(count)) = (number, newest.get_i32("pieces")) else {
            return Err(SnapshotError::Damaged("a snapshot document cannot be read".to_owned()));
        };
        let mut pieces = collections.snapshots.find(doc! { "_id.n": number }).sort(doc! { "_id": 1 }).await?;
        let (mut bytes, mut found) = (Vec::new(), 0);
        while let Some(piece) = pieces.try_next().await? {
            bytes.extend_from_slice(piece.get_binary_generic("data").map_or(&[][..], Vec::as_slice));
            found += 1;
        }
        if found == count {
            let catalog = Catalog::from_bytes(&bytes).map_err(SnapshotError::Damaged)?;
            return Ok(Some((number as u64, catalog)));
        }
        // The snapshot is incomplete: its writer ended too early. The previous snapshot and the commits after it still exist.
        below = number;
    }
}

/// Why a snapshot could not be read.
pub(crate) enum SnapshotError {
    Driver(mongodb::error::Error),
    Damaged(String),
}

impl From<mongodb::error::Error> for SnapshotError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}
