//! Commits whose end is not known: finding out whether they are whole, deciding it for good, and removing what is left of a cut one.
//!
//! The leader that sent a bulk and the one that takes over may both look at it. The fence decides: it is marked `whole` unless it
//! is void, or `void` unless it is whole, and both go by what the fence says. A leader whose bulk was answered within the time that
//! its fence grants need not ask: nobody voids a commit before that time is over.

use crate::engine::bulk::RECORD_PIECES_MAX;
use crate::engine::database::MongoDatabase;
use crate::engine::fence::Fence;
use crate::engine::keys::{FENCES, RECORDS, bson_key};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Document, doc};
use mongodb::error::Result as MongoResult;
use std::time::{Duration, Instant};

/// How often to look whether a bulk has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Added to the time that a fence grants, for clocks that do not run at quite the same speed.
const MARGIN: Duration = Duration::from_millis(500);
/// Deletes that run at the same time.
const DELETES_AT_ONCE: usize = 16;
/// How often a decision is tried while the server changes its primary.
const DECISIONS_MAX: u32 = 10;

/// What became of a commit, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of it is durable.
    Whole,
    /// Nothing of it is left but its fence.
    Void,
    /// It never arrived, or a failover took it back.
    NotThere,
}

impl MongoDatabase {
    pub(crate) async fn find_fence(&self, number: u64) -> MongoResult<Option<Fence>> {
        let found = self.collections.events.find_one(doc! { "_id": bson_key(FENCES, number) }).await?;
        found.as_deref().map(Fence::parse_strictly).transpose()
    }

    /// Whether all documents of a commit were written: the bulk is ordered, so the last one tells. It holds records, and a snapshot
    /// never removes those of the newest commit.
    async fn is_whole(&self, fence: &Fence) -> MongoResult<bool> {
        if !fence.has_content() {
            return Ok(true);
        }
        let find = self.collections.events.find_one(doc! { "_id": last_record(fence) });
        Ok(find.projection(doc! { "_id": 1 }).await?.is_some())
    }

    /// Waits until a commit is whole, as long as the server may be working on it. Returns whether it is.
    async fn wait_until_whole(&self, fence: &Fence) -> MongoResult<bool> {
        let over = Instant::now() + Duration::from_millis(fence.max_time_ms.into()) + MARGIN;
        loop {
            // First the clock: a document that came in time is seen after it.
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

    /// Decides what a commit is. `may_be_running`: the server may still be working on it.
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
                // In this order: the mark must not outlive documents that a failover takes back.
                if self.confirm_last_record(fence).await? && self.mark(fence, "whole", "void").await? {
                    return Ok(Fate::Whole);
                }
            } else if self.mark(fence, "void", "whole").await? {
                self.remove_cut(fence).await?;
                return Ok(Fate::Void);
            }
            // Another process has decided, or another primary knows less.
        }
        Err(mongodb::error::Error::custom(format!("the fate of commit {} is not clear", fence.number)))
    }

    /// Marks a fence, unless it has the other mark. Returns whether it is marked now; then a majority knows.
    async fn mark(&self, fence: &Fence, mark: &str, unless: &str) -> MongoResult<bool> {
        let filter = doc! { "_id": bson_key(FENCES, fence.number), unless: { "$ne": true } };
        let update = doc! { "$set": { mark: true, "keep": true } };
        let marked = self.collections.events.update_one(filter, update);
        Ok(marked.write_concern(self.options.majority()).await?.matched_count == 1)
    }

    /// Writes to the last document of a commit. When that is durable, so is the whole commit: the primary that took this has it,
    /// and everything before it. Returns whether the document is there.
    async fn confirm_last_record(&self, fence: &Fence) -> MongoResult<bool> {
        if !fence.has_content() {
            return Ok(true);
        }
        let update = doc! { "$set": { "confirmed": true } };
        let confirmed = self.collections.events.update_one(doc! { "_id": last_record(fence) }, update);
        Ok(confirmed.write_concern(self.options.majority()).await?.matched_count == 1)
    }

    /// Removes what is left of a commit whose fence is void. If this is interrupted, the next takeover continues.
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

    /// Removes documents of older commits from where a commit writes, and above.
    pub(crate) async fn remove_strays(&self, fence: &Fence) -> MongoResult<()> {
        let stray =
            |from, to| doc! { "_id": { "$gte": from, "$lte": to }, "commit": { "$lt": fence.number as i64 } };
        let topics = fence.topics.iter();
        let filters = topics.map(|it| stray(bson_key(it.topic, it.from), bson_key(it.topic, u64::MAX)));
        self.remove_each(filters.collect()).await
    }

    /// One delete per range: the server scans a clustered collection from end to end for several ranges in one filter.
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

/// Filters for the documents of a commit.
fn contents(fence: &Fence) -> Vec<Document> {
    let range = |from, to| doc! { "_id": { "$gte": from, "$lte": to }, "commit": fence.number as i64 };
    let topics = fence.topics.iter().map(|it| range(bson_key(it.topic, it.from), bson_key(it.topic, it.to)));
    let first = fence.number * RECORD_PIECES_MAX;
    let records = range(bson_key(RECORDS, first), bson_key(RECORDS, first + RECORD_PIECES_MAX - 1));
    topics.chain([records]).collect()
}
