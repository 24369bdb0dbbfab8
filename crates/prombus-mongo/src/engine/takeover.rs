//! A takeover: a new leader writes its own fence (`fence.rs`), waits for the end of the previous leader's last bulk, and only then reads
//! the state.
//!
//! The order matters: after the fence, no other process can begin a commit, and after the wait, no commit of another process is running.

use crate::bson_writer::BsonWriter;
use crate::engine::bulk::parse_records;
use crate::engine::catalog::Catalog;
use crate::engine::cut::Fate;
use crate::engine::database::MongoDatabase;
use crate::engine::fence::Fence;
use crate::engine::keys::{FENCES, RECORDS, bson_key};
use crate::engine::snapshots::{self, SnapshotError};
use crate::engine::writer::Writer;
use crate::errors::{DUPLICATE_KEY, reason};
use futures_util::TryStreamExt as _;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use prombus::OpenError;
use prombus::engine::Takeover;
use prombus::engine::network::EncodedRecord;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of attempts to write the fence: another process may write at the same time, or the primary may change.
const FENCE_ATTEMPTS: u32 = 40;
/// The maximum number of fences that are read to find the last commit. Takeovers without commits have fences too.
const FENCES_EXAMINED: i64 = 32;
/// Pause between two attempts to write the fence.
const FENCE_PAUSE: Duration = Duration::from_millis(250);

/// What a takeover found.
pub(crate) struct Found {
    pub(crate) writer: Writer,
    /// The number of commits since the newest snapshot.
    pub(crate) commits: u64,
}

fn failed(error: &mongodb::error::Error) -> OpenError {
    OpenError::Store(format!("cannot take the store over: {}", reason(error)))
}

impl MongoDatabase {
    /// Takes over the store. It does not matter whether the previous leader has released its lease: the takeover waits only if the last
    /// bulk is not whole.
    pub(crate) async fn take_over(&self, _takeover: Takeover) -> Result<Found, OpenError> {
        let own = self.write_own_fence().await?;
        self.decide_last_commit(own).await.map_err(|error| failed(&error))?;
        let mut base_before = None;
        loop {
            match self.read_state(own).await {
                Ok(found) => return Ok(found),
                Err(StateError::Driver(error)) => return Err(failed(&error)),
                Err(StateError::Damaged(why)) => return Err(OpenError::Groups(why)),
                // The previous leader may have written a snapshot in the meantime, which removes older commits.
                Err(StateError::Missing { base, .. }) if base_before != Some(base) => {
                    base_before = Some(base);
                }
                Err(StateError::Missing { why, .. }) => return Err(OpenError::Store(why)),
            }
        }
    }

    /// Resolves the last bulk of the previous leader, which the server may still be writing. After this, the bulk is permanently whole or
    /// void.
    async fn decide_last_commit(&self, own: u64) -> MongoResult<()> {
        let fences = self.newest_fences(FENCES_EXAMINED).await?;
        let mut earlier = fences.iter().filter(|fence| fence.number < own);
        let Some(last) = earlier.find(|fence| fence.has_content() && !fence.is_void) else { return Ok(()) };
        if self.decide(last, true).await? == Fate::Void {
            tracing::warn!("commit {} was cut and never confirmed; it is removed", last.number);
        }
        Ok(())
    }

    /// Reads the newest snapshot and the commits after it.
    async fn read_state(&self, own: u64) -> Result<Found, StateError> {
        let snapshot = snapshots::read(&self.collections).await?;
        let (base, catalog) = snapshot.unwrap_or_else(|| (0, Catalog::new()));
        if base >= own {
            let why = format!(
                "there is a snapshot of commit {base}, but the newest commit is {}: only a part of the database was restored",
                own - 1
            );
            return Err(StateError::Damaged(why));
        }
        let catalog = self.replay(base, own, catalog).await?;
        Ok(Found { writer: Writer::new(catalog, own + 1), commits: own - base })
    }

    /// Writes a fence of this term after the newest fence. Returns its number.
    async fn write_own_fence(&self) -> Result<u64, OpenError> {
        let mut last_error = None;
        for attempt in 0..FENCE_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(FENCE_PAUSE).await;
            }
            match self.try_own_fence().await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(OwnFenceError::Led { term }) => {
                    return Err(OpenError::Led { address: self.leader_name().await, term });
                }
                Err(OwnFenceError::Driver(error)) => {
                    tracing::debug!(
                        "cannot write the fence of term {}, will retry: {}",
                        self.term,
                        reason(&error)
                    );
                    last_error = Some(error);
                }
            }
        }
        let busy = || OpenError::Store("other processes keep writing fences".to_owned());
        Err(last_error.as_ref().map_or_else(busy, failed))
    }

    /// Tries to write the fence. Returns `None` if another process took the number, or a failover removed the fence; the caller then tries
    /// again.
    async fn try_own_fence(&self) -> Result<Option<u64>, OwnFenceError> {
        let last = self.newest_fences(1).await?.into_iter().next();
        if let Some(last) = &last {
            if last.term > self.term {
                return Err(OwnFenceError::Led { term: last.term });
            }
            if last.writer == self.writer_token {
                // An earlier attempt wrote this fence, but its response was lost. The fence is updated, so that a majority has it.
                let is_there = self.confirm_fence(last.number).await?;
                return Ok(is_there.then_some(last.number));
            }
        }
        let number = last.as_ref().map_or(0, |last| last.number) + 1;
        let (newest_id, newest_ms) =
            last.as_ref().map_or_else(Default::default, |last| (last.newest_id, last.newest_ms));
        let newest_ms = if last.is_some() { newest_ms } else { i64::MIN };
        let fence = Fence {
            number,
            term: self.term,
            writer: self.writer_token,
            newest_id,
            newest_ms,
            ..Fence::default()
        };
        let mut writer = BsonWriter::default();
        let outer = writer.begin();
        fence.put(&mut writer, "fence", self.clock.wall_ms());
        writer.end(outer);
        let outer = RawDocumentBuf::from_bytes(writer.into_bytes()).map_err(mongodb::error::Error::from)?;
        let document = outer.get_document("fence").map_err(mongodb::error::Error::custom)?.to_owned();
        match self.collections.events.insert_one(document).write_concern(self.options.majority()).await {
            Ok(_) => Ok(Some(number)),
            Err(error) if crate::errors::is_code(&error, DUPLICATE_KEY) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Updates the fence, so that a majority has it. Returns whether it exists.
    async fn confirm_fence(&self, number: u64) -> MongoResult<bool> {
        let update = doc! { "$set": { "confirmed": true } };
        let confirm = self.collections.events.update_one(doc! { "_id": bson_key(FENCES, number) }, update);
        Ok(confirm.write_concern(self.options.majority()).await?.matched_count == 1)
    }

    /// The last fences, the newest first.
    pub(crate) async fn newest_fences(&self, count: i64) -> MongoResult<Vec<Fence>> {
        let filter = doc! { "_id": { "$gte": bson_key(FENCES, 0), "$lt": bson_key(RECORDS, 0) } };
        let mut found = self.collections.events.find(filter).sort(doc! { "_id": -1 }).limit(count).await?;
        let mut fences = Vec::new();
        while let Some(document) = found.try_next().await? {
            fences.push(Fence::parse_strictly(&document)?);
        }
        Ok(fences)
    }

    /// Applies the commits after a snapshot to its catalog.
    async fn replay(&self, base: u64, own: u64, mut catalog: Catalog) -> Result<Catalog, StateError> {
        let fences = self.read_fences(base, own).await?;
        let mut records = self.read_records(base).await?;
        let missing = |number: u64| {
            let why = format!(
                "commit {number} is missing: documents were removed, or only a part of the database was restored"
            );
            StateError::Missing { base, why }
        };
        for (number, fence) in (base + 1..).zip(&fences) {
            if fence.number != number {
                return Err(missing(number));
            }
            if fence.is_void {
                self.remove_cut(fence).await?;
                continue;
            }
            let CommitRecords { pieces, records } = records.remove(&number).unwrap_or_default();
            if pieces != fence.record_pieces {
                return Err(missing(number));
            }
            catalog.apply(fence, &records).map_err(StateError::Damaged)?;
        }
        let last = base + fences.len() as u64;
        if last == own { Ok(catalog) } else { Err(missing(last + 1)) }
    }

    async fn read_fences(&self, base: u64, own: u64) -> MongoResult<Vec<Fence>> {
        let filter = doc! { "_id": { "$gt": bson_key(FENCES, base), "$lte": bson_key(FENCES, own) } };
        let mut found = self.collections.events_majority.find(filter).sort(doc! { "_id": 1 }).await?;
        let mut fences = Vec::new();
        while found.advance().await? {
            fences.push(Fence::parse_strictly(found.current())?);
        }
        Ok(fences)
    }

    async fn read_records(&self, base: u64) -> Result<BTreeMap<u64, CommitRecords>, StateError> {
        let first = (base + 1) * crate::engine::bulk::RECORD_PIECES_MAX;
        let filter =
            doc! { "_id": { "$gte": bson_key(RECORDS, first), "$lte": bson_key(RECORDS, u64::MAX) } };
        let mut found = self.collections.events_majority.find(filter).sort(doc! { "_id": 1 }).await?;
        let mut records: BTreeMap<u64, CommitRecords> = BTreeMap::new();
        while found.advance().await? {
            let document = found.current();
            let damaged = |_| StateError::Damaged("a document with state records is damaged".to_owned());
            let commit = document.get_i64("commit").map_err(damaged)?;
            let bytes = document.get_binary("records").map_err(damaged)?.bytes;
            let into = records.entry(commit as u64).or_default();
            into.pieces += 1;
            parse_records(bytes, &mut into.records).map_err(StateError::Damaged)?;
        }
        Ok(records)
    }
}

/// The records of a commit.
#[derive(Default)]
struct CommitRecords {
    /// The number of documents that were found.
    pieces: u32,
    records: Vec<EncodedRecord>,
}

/// Why the state could not be read.
enum StateError {
    Driver(mongodb::error::Error),
    Damaged(String),
    /// A commit is missing after the snapshot of commit `base`.
    Missing {
        base: u64,
        why: String,
    },
}

impl From<mongodb::error::Error> for StateError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<SnapshotError> for StateError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Driver(error) => Self::Driver(error),
            SnapshotError::Damaged(why) => Self::Damaged(why),
        }
    }
}

enum OwnFenceError {
    /// A newer term has written its fence.
    Led {
        term: u64,
    },
    Driver(mongodb::error::Error),
}

impl From<mongodb::error::Error> for OwnFenceError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}
