//! Commits that were cut in the middle: finding out, and removing what is left of them.

use crate::bulk::RECORD_PIECES_MAX;
use crate::database::MongoDatabase;
use crate::fence::Fence;
use crate::keys::{FENCES, RECORDS, bson_key};
use mongodb::bson::{Document, doc};
use mongodb::error::Result as MongoResult;
use std::time::{Duration, Instant};

/// How often to look whether a bulk has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl MongoDatabase {
    pub(crate) async fn find_fence(&self, number: u64) -> MongoResult<Option<Fence>> {
        let found = self.collections.events.find_one(doc! { "_id": bson_key(FENCES, number) }).await?;
        Ok(found.as_deref().and_then(Fence::parse))
    }

    /// Whether all documents of a commit were written: the bulk is ordered, so the last one tells. It holds records, which only a
    /// snapshot replaces.
    pub(crate) async fn is_whole(&self, fence: &Fence) -> MongoResult<bool> {
        if !fence.has_content() {
            return Ok(true);
        }
        let last = fence.number * RECORD_PIECES_MAX + u64::from(fence.record_pieces) - 1;
        let events = &self.collections.events;
        let found =
            events.find_one(doc! { "_id": bson_key(RECORDS, last) }).projection(doc! { "_id": 1 }).await?;
        Ok(found.is_some())
    }

    /// Waits until a commit is whole, as long as the server may be working on it. Returns whether it is.
    pub(crate) async fn wait_until_whole(&self, fence: &Fence) -> MongoResult<bool> {
        let over = Instant::now() + Duration::from_millis(fence.max_time_ms.into());
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

    /// Removes what is left of a commit that was cut. Its fence is marked void first: if this is interrupted, the next takeover
    /// continues.
    pub(crate) async fn remove_cut(&self, fence: &Fence) -> MongoResult<()> {
        let events = &self.collections.events;
        let fence_key = doc! { "_id": bson_key(FENCES, fence.number) };
        let concern = || self.options.driver_write_concern();
        events
            .update_one(fence_key.clone(), doc! { "$set": { "void": true } })
            .write_concern(concern())
            .await?;
        for filter in contents(fence) {
            events.delete_many(filter).write_concern(concern()).await?;
        }
        events.update_one(fence_key, doc! { "$set": { "removed": true } }).write_concern(concern()).await?;
        Ok(())
    }

    /// Removes documents of older commits from the ranges of a commit.
    pub(crate) async fn remove_strays(&self, fence: &Fence) -> MongoResult<()> {
        for it in &fence.topics {
            let filter = doc! {
                "_id": { "$gte": bson_key(it.topic, it.from), "$lte": bson_key(it.topic, it.to) },
                "commit": { "$lt": fence.number as i64 },
            };
            let concern = self.options.driver_write_concern();
            self.collections.events.delete_many(filter).write_concern(concern).await?;
        }
        Ok(())
    }
}

/// Filters for the documents of a commit.
fn contents(fence: &Fence) -> Vec<Document> {
    let range = |from, to| doc! { "_id": { "$gte": from, "$lte": to }, "commit": fence.number as i64 };
    let topics = fence.topics.iter().map(|it| range(bson_key(it.topic, it.from), bson_key(it.topic, it.to)));
    let first = fence.number * RECORD_PIECES_MAX;
    let records = range(bson_key(RECORDS, first), bson_key(RECORDS, first + RECORD_PIECES_MAX - 1));
    topics.chain([records]).collect()
}
