//! Resolves commits whose outcome is unknown: finds out whether a commit is whole or cut, records the decision permanently, and removes
//! the remains of a cut commit. A commit is one ordered bulk insert that begins with its fence (`fence.rs`). It is *cut* if the MongoDB
//! server stored only the first documents of the bulk.
//!
//! The leader that sent a bulk and the leader that takes over may both resolve it. A mark on the fence decides. A leader sets the mark
//! `whole` only if the fence is not marked `void`, and the reverse. So a fence has at most one mark, and both leaders follow it. If MongoDB
//! confirms a bulk within the time limit that its fence contains, the leader that sent the bulk need not check the mark, because no process
//! voids a commit before that limit.

use crate::engine::bulk::RECORD_PIECES_MAX;
use crate::engine::database::MongoDatabase;
use crate::engine::fence::Fence;
use crate::engine::keys::{FENCES, RECORDS, bson_key};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Document, doc};
use mongodb::error::Result as MongoResult;
use std::time::{Duration, Instant};

/// Pause between two checks whether a bulk is whole.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Added to the time limit of a fence, because clocks do not run at exactly the same speed.
const MARGIN: Duration = Duration::from_millis(500);
/// Deletes that run at the same time.
const DELETES_AT_ONCE: usize = 16;
/// The maximum number of attempts to decide a commit. An attempt fails if another process or a change of the primary interferes.
const DECISIONS_MAX: u32 = 10;

/// The final outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The whole commit is durable.
    Whole,
    /// The commit is void: only its fence is left.
    Void,
    /// The commit never arrived, or a failover removed it.
    NotThere,
}

impl MongoDatabase {
    /// The fence with this number; `None` if the number is not taken.
    pub(crate) async fn find_fence(&self, number: u64) -> MongoResult<Option<Fence>> {
        let found = self.collections.events.find_one(doc! { "_id": bson_key(FENCES, number) }).await?;
        found.as_deref().map(Fence::parse_strictly).transpose()
    }

    /// Whether all documents of a commit were written. The bulk is ordered, so it is enough to find the last document. That document
    /// contains records. A snapshot of the catalog replaces older records, but never those of the newest commit.
    async fn is_whole(&self, fence: &Fence) -> MongoResult<bool> {
        if !fence.has_content() {
            return Ok(true);
        }
        let find = self.collections.events.find_one(doc! { "_id": last_record(fence) });
        Ok(find.projection(doc! { "_id": 1 }).await?.is_some())
    }

    /// Waits until a commit is whole, as long as the server may still be writing it. Returns whether it is whole.
    async fn wait_until_whole(&self, fence: &Fence) -> MongoResult<bool> {
        let over = Instant::now() + Duration::from_millis(fence.max_time_ms.into()) + MARGIN;
        loop {
            // The clock is read before the check, so that the last check finds every document that was written within the time limit.
            let is_over = Instant::now() >= over;
            if self.is_whole(fence).await? {
                return Ok(true);
            }
            if is_over {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Decides the outcome of a commit. `may_be_running` means that the server may still be writing the commit.
    pub(crate) async fn decide(&self, fence: &Fence, may_be_running: bool) -> MongoResult<Fate> {
        for _ in 0..DECISIONS_MAX {
            let Some(found) = self.find_fence(fence.number).await?.filter(|it| it.writer == fence.writer)
            else {
                return Ok(Fate::NotThere);
            };
            if found.is_void {
                self.remove_cut(&found).await?;
                return Ok(Fate::Void);
            }
            let is_whole = if may_be_running {
                self.wait_until_whole(fence).await?
            } else {
                self.is_whole(fence).await?
            };
            if is_whole {
                // The order matters: the mark must not survive a failover that removes the documents.
                if self.confirm_last_record(fence).await? && self.mark(fence, "whole", "void").await? {
                    return Ok(Fate::Whole);
                }
            } else if self.mark(fence, "void", "whole").await? {
                self.remove_cut(fence).await?;
                return Ok(Fate::Void);
            }
            // Another process has decided, or a new primary lacks some documents.
        }
        Err(mongodb::error::Error::custom(format!(
            "the outcome of commit {} cannot be determined",
            fence.number
        )))
    }

    /// Marks a fence, unless it has the other mark. Returns whether the mark was set; it is then stored on a majority.
    async fn mark(&self, fence: &Fence, mark: &str, unless: &str) -> MongoResult<bool> {
        let filter = doc! { "_id": bson_key(FENCES, fence.number), unless: { "$ne": true } };
        let update = doc! { "$set": { mark: true, "keep": true } };
        let marked = self.collections.events.update_one(filter, update);
        Ok(marked.write_concern(self.options.majority()).await?.matched_count == 1)
    }

    /// Updates the last document of a commit. When this write is durable, so is the whole commit: the primary that accepted it has all
    /// earlier documents. Returns whether the document exists.
    async fn confirm_last_record(&self, fence: &Fence) -> MongoResult<bool> {
        if !fence.has_content() {
            return Ok(true);
        }
        let update = doc! { "$set": { "confirmed": true } };
        let confirmed = self.collections.events.update_one(doc! { "_id": last_record(fence) }, update);
        Ok(confirmed.write_concern(self.options.majority()).await?.matched_count == 1)
    }

    /// Removes the remains of a commit whose fence is void. If this is interrupted, the next takeover continues it.
    pub(crate) async fn remove_cut(&self, fence: &Fence) -> MongoResult<()> {
        if fence.is_removed {
            return Ok(());
        }
        self.remove_each(contents(fence)).await?;
        let events = &self.collections.events;
        let fence_key = doc! { "_id": bson_key(FENCES, fence.number) };
        let update = doc! { "$set": { "removed": true } };
        events.update_one(fence_key, update).write_concern(self.options.majority()).await?;
        Ok(())
    }

    /// Removes strays: in each topic that a commit writes to, the documents of older commits whose seq is the commit's first seq or higher.
    pub(crate) async fn remove_strays(&self, fence: &Fence) -> MongoResult<()> {
        let stray =
            |from, to| doc! { "_id": { "$gte": from, "$lte": to }, "commit": { "$lt": fence.number as i64 } };
        let topics = fence.topics.iter();
        let filters = topics.map(|it| stray(bson_key(it.topic, it.from), bson_key(it.topic, u64::MAX)));
        self.remove_each(filters.collect()).await
    }

    /// Runs one delete per range, because the server scans a whole clustered collection if a filter has several ranges.
    async fn remove_each(&self, filters: Vec<Document>) -> MongoResult<()> {
        let delete = |filter| async {
            self.collections.events.delete_many(filter).write_concern(self.options.majority()).await
        };
        let deletes = futures_util::stream::iter(filters).map(delete);
        deletes.buffer_unordered(DELETES_AT_ONCE).try_for_each(|_| async { Ok(()) }).await
    }
}

/// The `_id` of the last document of a commit.
fn last_record(fence: &Fence) -> mongodb::bson::Bson {
    bson_key(RECORDS, fence.number * RECORD_PIECES_MAX + u64::from(fence.record_pieces) - 1)
}

/// Filters for the documents of a commit other than its fence.
fn contents(fence: &Fence) -> Vec<Document> {
    let range = |from, to| doc! { "_id": { "$gte": from, "$lte": to }, "commit": fence.number as i64 };
    let topics = fence.topics.iter().map(|it| range(bson_key(it.topic, it.from), bson_key(it.topic, it.to)));
    let first = fence.number * RECORD_PIECES_MAX;
    let records = range(bson_key(RECORDS, first), bson_key(RECORDS, first + RECORD_PIECES_MAX - 1));
    topics.chain([records]).collect()
}
