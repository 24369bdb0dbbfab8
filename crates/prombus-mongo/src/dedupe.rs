//! Stores marks in a collection. A mark records that a consumer has handled an event. MongoDB removes marks that have expired.

use crate::errors::reason;
use crate::server_abilities::{ServerError, majority};
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Collection, Database, IndexModel};
use prombus::consume::dedupe::{DedupeError, DedupeStore};
use prombus::{BoxFuture, Uuid};
use std::time::Duration;

/// Marks in the collection `dedupe` of a MongoDB database: `{ _id: "<topic>::<group>::<id>", expireAt }`. Expiry is by the server's
/// clock.
///
/// It is a store for [`Bus::subscribe_exactly_once`](prombus::Bus::subscribe_exactly_once). On a replica set,
/// [`MongoExactlyOnce`](crate::MongoExactlyOnce) commits the handler's writes and the mark together.
#[derive(Clone)]
pub struct MongoDedupe {
    marks: Collection<Document>,
}

impl MongoDedupe {
    /// Opens the collection `dedupe` of a database. Creates it and its index if they are missing.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn open(database: &Database) -> Result<Self, ServerError> {
        Self::open_collection(database, "dedupe").await
    }

    /// Opens a collection with another name.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn open_collection(database: &Database, name: &str) -> Result<Self, ServerError> {
        Ok(Self { marks: open_marks(database, name).await? })
    }
}

/// The collection of marks, with the TTL index that removes expired marks.
pub(crate) async fn open_marks(database: &Database, name: &str) -> Result<Collection<Document>, ServerError> {
    let marks: Collection<Document> = database.collection(name);
    let expiry = IndexOptions::builder().expire_after(Duration::ZERO).build();
    marks.create_index(IndexModel::builder().keys(doc! { "expireAt": 1 }).options(expiry).build()).await?;
    Ok(marks)
}

/// The `_id` of a mark.
pub(crate) fn mark_key(topic: &str, group: &str, id: Uuid) -> String {
    format!("{topic}::{group}::{id}")
}

/// When a mark that is set now expires, by the server's clock.
pub(crate) fn expiry(ttl_ms: u64) -> Document {
    doc! { "$add": ["$$NOW", i64::try_from(ttl_ms).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)] }
}

impl DedupeStore for MongoDedupe {
    fn seen<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
    ) -> BoxFuture<'a, Result<bool, DedupeError>> {
        // A mark without `expireAt` belongs to an event that may still be redelivered, so it is live.
        let is_live = doc! { "$gt": [{ "$ifNull": ["$expireAt", { "$add": ["$$NOW", 1] }] }, "$$NOW"] };
        let filter = doc! { "_id": mark_key(topic, group, id), "$expr": is_live };
        Box::pin(async move {
            let found = self.marks.find_one(filter).projection(doc! { "_id": 1 }).await;
            Ok(found.map_err(dedupe_error)?.is_some())
        })
    }

    fn mark<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>> {
        let filter = doc! { "_id": mark_key(topic, group, id) };
        // A mark that expires in the future is unchanged. A mark that has expired but was not removed yet becomes a new mark.
        let is_live = doc! { "$gt": ["$expireAt", "$$NOW"] };
        let update = doc! { "$set": { "expireAt": { "$cond": [is_live, "$expireAt", expiry(ttl_ms)] } } };
        Box::pin(async move {
            let update = self.marks.update_one(filter, vec![update]).upsert(true);
            update.write_concern(majority()).await.map_err(dedupe_error)?;
            Ok(())
        })
    }
}

impl std::fmt::Debug for MongoDedupe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MongoDedupe({})", self.marks.namespace())
    }
}

fn dedupe_error(error: mongodb::error::Error) -> DedupeError {
    DedupeError::Other(reason(&error))
}
