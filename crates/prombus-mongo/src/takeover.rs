//! A new leader: it writes its own fence, waits for the end of the bulk of the leader before, and only then reads the state.
//!
//! The order matters: after the fence nobody else can begin a commit, and after the wait nobody else is in the middle of one.

use crate::bson_writer::BsonWriter;
use crate::bulk::parse_records;
use crate::catalog::Catalog;
use crate::database::MongoDatabase;
use crate::errors::{DUPLICATE_KEY, reason};
use crate::fence::Fence;
use crate::keys::{FENCES, RECORDS, bson_key};
use crate::snapshots::{self, SnapshotError};
use crate::writer::Writer;
use futures_util::TryStreamExt as _;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use prombus::OpenError;
use prombus::engine::Takeover;
use prombus::engine::network::EncodedRecord;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often a fence is tried: another process may be writing at the same time, or the server may change its role.
const FENCE_ATTEMPTS: u32 = 40;
/// Takeovers that may have come to nothing since the last commit.
const FENCES_EXAMINED: i64 = 32;
const FENCE_PAUSE: Duration = Duration::from_millis(250);

/// What a takeover found.
pub(crate) struct Found {
    pub(crate) writer: Writer,
    /// Commits since the newest snapshot.
    pub(crate) commits: u64,
}

fn failed(error: &mongodb::error::Error) -> OpenError {
    OpenError::Store(format!("cannot take the store over: {}", reason(error)))
}

impl MongoDatabase {
    pub(crate) async fn take_over(&self, takeover: Takeover) -> Result<Found, OpenError> {
        let own = self.write_own_fence().await?;
        if !takeover.was_released {
            let newest = self.newest_fences(FENCES_EXAMINED).await.map_err(|error| failed(&error))?;
            if let Some(last) = newest.iter().find(|fence| fence.has_content() && !fence.is_void) {
                self.wait_until_whole(last).await.map_err(|error| failed(&error))?;
            }
        }
        let snapshot = snapshots::read(&self.collections).await.map_err(|error| match error {
            SnapshotError::Driver(error) => failed(&error),
            SnapshotError::Damaged(why) => OpenError::Groups(why),
        })?;
        let (base, catalog) = snapshot.unwrap_or_else(|| (0, Catalog::new()));
        let catalog = self.replay(base, own, catalog).await?;
        Ok(Found { writer: Writer::new(catalog, own + 1), commits: own - base })
    }

    /// Writes a fence of this term after the newest one. Returns its number.
    async fn write_own_fence(&self) -> Result<u64, OpenError> {
        let mut last_error = None;
        for attempt in 0..FENCE_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(FENCE_PAUSE).await;
            }
            match self.try_own_fence().await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(OwnFenceError::Led) => return Err(OpenError::Led { address: self.leader_name().await }),
                Err(OwnFenceError::Driver(error)) => {
                    tracing::debug!("the fence of term {} is tried again: {}", self.term, reason(&error));
                    last_error = Some(error);
                }
            }
        }
        let busy = || OpenError::Store("other processes write fences without end".to_owned());
        Err(last_error.as_ref().map_or_else(busy, failed))
    }

    /// `None`: another process was faster; try again.
    async fn try_own_fence(&self) -> Result<Option<u64>, OwnFenceError> {
        let last = self.newest_fences(1).await?.into_iter().next();
        if let Some(last) = &last {
            if last.term > self.term {
                return Err(OwnFenceError::Led);
            }
            if last.writer == self.writer_token {
                // An attempt whose answer was lost. Written again, so that a majority has it.
                self.confirm_fence(last.number).await?;
                return Ok(Some(last.number));
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
        let concern = self.options.driver_write_concern();
        match self.collections.events.insert_one(document).write_concern(concern).await {
            Ok(_) => Ok(Some(number)),
            Err(error) if crate::errors::is_code(&error, DUPLICATE_KEY) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn confirm_fence(&self, number: u64) -> MongoResult<()> {
        let update = doc! { "$set": { "confirmed": true } };
        let concern = self.options.driver_write_concern();
        let events = &self.collections.events;
        events.update_one(doc! { "_id": bson_key(FENCES, number) }, update).write_concern(concern).await?;
        Ok(())
    }

    /// The newest fences, the newest first.
    pub(crate) async fn newest_fences(&self, count: i64) -> MongoResult<Vec<Fence>> {
        let filter = doc! { "_id": { "$gte": bson_key(FENCES, 0), "$lt": bson_key(RECORDS, 0) } };
        let mut found = self.collections.events.find(filter).sort(doc! { "_id": -1 }).limit(count).await?;
        let mut fences = Vec::new();
        while let Some(document) = found.try_next().await? {
            fences.extend(Fence::parse(&document));
        }
        Ok(fences)
    }

    /// Adds the commits after a snapshot to it. A commit that was cut is removed.
    async fn replay(&self, base: u64, own: u64, mut catalog: Catalog) -> Result<Catalog, OpenError> {
        let fences = self.read_fences(base, own).await.map_err(|error| failed(&error))?;
        let mut records = self.read_records(base).await.map_err(|error| failed(&error))?;
        let newest_content = fences.iter().rev().find(|fence| fence.has_content() && !fence.is_void);
        let newest_content = newest_content.map(|fence| fence.number);
        for (expected, fence) in (base + 1..).zip(&fences) {
            if fence.number != expected {
                return Err(OpenError::Store(format!(
                    "commit {expected} is missing: documents were removed, or only a part of the database was restored"
                )));
            }
            let mut is_void = fence.is_void;
            // Only the newest commit can be cut: the next one is sent when it is known to be whole.
            if newest_content == Some(fence.number)
                && !self.is_whole(fence).await.map_err(|error| failed(&error))?
            {
                tracing::warn!("commit {} was cut and never answered; it is removed", fence.number);
                is_void = true;
            }
            if is_void {
                if !fence.is_removed {
                    self.remove_cut(fence).await.map_err(|error| failed(&error))?;
                }
                continue;
            }
            let records = records.remove(&fence.number).unwrap_or_default();
            catalog.apply(fence, &records).map_err(OpenError::Groups)?;
        }
        Ok(catalog)
    }

    async fn read_fences(&self, base: u64, own: u64) -> MongoResult<Vec<Fence>> {
        let filter = doc! { "_id": { "$gt": bson_key(FENCES, base), "$lte": bson_key(FENCES, own) } };
        let mut found = self.collections.events_majority.find(filter).sort(doc! { "_id": 1 }).await?;
        let mut fences = Vec::new();
        while found.advance().await? {
            fences.extend(Fence::parse(found.current()));
        }
        Ok(fences)
    }

    async fn read_records(&self, base: u64) -> MongoResult<BTreeMap<u64, Vec<EncodedRecord>>> {
        let first = (base + 1) * crate::bulk::RECORD_PIECES_MAX;
        let filter =
            doc! { "_id": { "$gte": bson_key(RECORDS, first), "$lte": bson_key(RECORDS, u64::MAX) } };
        let mut found = self.collections.events_majority.find(filter).sort(doc! { "_id": 1 }).await?;
        let mut records: BTreeMap<u64, Vec<EncodedRecord>> = BTreeMap::new();
        while found.advance().await? {
            let document = found.current();
            let commit = document.get_i64("commit").map_err(mongodb::error::Error::custom)?;
            let bytes = document.get_binary("records").map_err(mongodb::error::Error::custom)?.bytes;
            let into = records.entry(commit as u64).or_default();
            parse_records(bytes, into).map_err(mongodb::error::Error::custom)?;
        }
        Ok(records)
    }
}

enum OwnFenceError {
    /// A newer term has written its fence.
    Led,
    Driver(mongodb::error::Error),
}

impl From<mongodb::error::Error> for OwnFenceError {
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}
