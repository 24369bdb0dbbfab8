//! The position of a feed in the change stream, one document per feed.

use super::{ChangefeedError, ChangefeedOptions};
use crate::server_abilities::majority;
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::event::ResumeToken;
use mongodb::options::ReadConcern;
use mongodb::{Collection, Database};

/// The stored position of one feed.
pub(super) struct FeedPlace {
    places: Collection<Document>,
    /// The name of the feed.
    name: String,
}

/// The content of a stored position.
pub(super) struct Place {
    /// The feed continues after this change.
    pub(super) token: ResumeToken,
    /// Whether all documents of the collection must be published before the changes.
    pub(super) is_seeding: bool,
}

impl FeedPlace {
    pub(super) fn new(database: &Database, options: &ChangefeedOptions) -> Self {
        Self { places: database.collection(&options.places), name: options.name.clone() }
    }

    pub(super) async fn read(&self) -> Result<Option<Place>, ChangefeedError> {
        let find = self.places.find_one(doc! { "_id": &self.name }).read_concern(ReadConcern::majority());
        let Some(document) = find.await? else { return Ok(None) };
        let damaged = || {
            ChangefeedError::Stream(format!(
                "the stored position of {} is damaged: start it with reseed",
                self.name
            ))
        };
        let token = document.get("token").cloned().ok_or_else(damaged)?;
        let token: ResumeToken = mongodb::bson::deserialize_from_bson(token).map_err(|_| damaged())?;
        Ok(Some(Place { token, is_seeding: document.get_bool("seeding").unwrap_or(false) }))
    }

    /// Stores the first position of a feed, or of a reseed.
    pub(super) async fn begin(&self, token: &ResumeToken, is_seeding: bool) -> Result<(), ChangefeedError> {
        self.set(doc! { "token": bson_of(token)?, "seeding": is_seeding }).await
    }

    pub(super) async fn end_seeding(&self) -> Result<(), ChangefeedError> {
        self.set(doc! { "seeding": false }).await
    }

    pub(super) async fn advance(&self, token: &ResumeToken) -> Result<(), ChangefeedError> {
        self.set(doc! { "token": bson_of(token)? }).await
    }

    async fn set(&self, fields: Document) -> Result<(), ChangefeedError> {
        let update = doc! { "$set": fields, "$currentDate": { "updated_at": true } };
        let update = self.places.update_one(doc! { "_id": &self.name }, update).upsert(true);
        update.write_concern(majority()).await?;
        Ok(())
    }
}

fn bson_of(token: &ResumeToken) -> Result<Bson, ChangefeedError> {
    mongodb::bson::serialize_to_bson(token).map_err(|error| ChangefeedError::Stream(error.to_string()))
}
