//! The changelog projector: keeps the state of a topic in a collection, one document per key.

use super::{
    MongoProjection, MongoProjector, MongoProjectorError, MongoProjectorFigures, MongoProjectorHandle,
    MongoProjectorOptions,
};
use crate::errors::DUPLICATE_KEY;
use crate::payload_bson::bson_of_json;
use crate::server_abilities::majority;
use crate::transaction::HandlerError;
use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection, Database};
use prombus::{BoxFuture, Bus, Event, HandlerFailure};
use std::collections::{BTreeMap, HashMap};

/// The fields that a projector adds.
const OWN_FIELDS: [&str; 4] = ["_id", "_key", "_v", "_ts"];

/// Options of a changelog projector.
#[derive(Clone, Debug)]
pub struct ChangelogOptions {
    /// The collection.
    pub collection: String,
    /// The options of the projector: topic, group, start, rebuild.
    pub projector: MongoProjectorOptions,
}

impl ChangelogOptions {
    /// The default options for a group: from the oldest event, up to 500 events per transaction. Set its [`topic`](Self::topic) and
    /// its [`collection`](Self::collection).
    pub fn group(group: impl Into<String>) -> Self {
        let projector = MongoProjectorOptions { batch_size: 500, ..MongoProjectorOptions::group(group) };
        Self { collection: String::new(), projector }
    }

    /// The topic: a typed topic, or a name.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.projector.topic = topic.into();
        self
    }

    /// The collection that gets the documents.
    #[must_use]
    pub fn collection(mut self, collection: impl Into<String>) -> Self {
        self.collection = collection.into();
        self
    }

    /// Deletes the documents of the collection that projectors wrote, and begins at the oldest event.
    #[must_use]
    pub fn rebuild(mut self) -> Self {
        self.projector.rebuild = true;
        self
    }
}

/// Keeps the state of a topic in a collection: the document of a key is the newest event of that key, and an event with the payload `null`
/// deletes the document.
///
/// The fields of the payload become the fields of the document; a payload that is not an object becomes the field `value`. `_id` and
/// `_key` are the event's key, `_v` its seq and `_ts` its time; fields of the payload with these names are left out. A document with a
/// newer `_v` is not changed. An event that cannot be stored becomes a dead letter with the reason, for example because it has no key or a
/// unique index refuses its document.
#[derive(Debug)]
pub struct ChangelogProjector {
    projector: MongoProjector<Changelog>,
}

impl ChangelogProjector {
    /// Takes over the group and the position.
    ///
    /// # Errors
    /// See [`MongoProjectorError`]. A standalone server has no transactions.
    pub async fn open(
        bus: &Bus,
        database: &Database,
        options: ChangelogOptions,
    ) -> Result<Self, MongoProjectorError> {
        if options.collection.is_empty() {
            return Err(MongoProjectorError::NoCollection);
        }
        let documents = database.collection(&options.collection);
        let changelog = Changelog { documents, database: database.clone() };
        Ok(Self { projector: MongoProjector::open(bus, database, options.projector, changelog).await? })
    }

    /// The counters and the current state of the projector.
    pub fn figures(&self) -> MongoProjectorFigures {
        self.projector.figures()
    }

    /// See [`MongoProjector::on_error`].
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.projector.on_error(callback);
    }

    /// See [`MongoProjector::last_error`].
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.projector.last_error()
    }

    /// See [`MongoProjector::next`].
    ///
    /// # Errors
    /// See [`MongoProjectorError`].
    pub async fn next(&mut self) -> Result<(), MongoProjectorError> {
        self.projector.next().await
    }

    /// See [`MongoProjector::run_until`].
    ///
    /// # Errors
    /// See [`MongoProjectorError`].
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), MongoProjectorError> {
        self.projector.run_until(shutdown).await
    }

    /// See [`MongoProjector::spawn`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn(self) -> MongoProjectorHandle {
        self.projector.spawn()
    }
}

/// The projection into the collection.
#[derive(Debug)]
struct Changelog {
    documents: Collection<Document>,
    database: Database,
}

impl Changelog {
    async fn write(&self, events: &[Event], session: &mut ClientSession) -> Result<(), HandlerError> {
        let mut newest: BTreeMap<&str, &Event> = BTreeMap::new();
        for event in events {
            newest.insert(event.key().ok_or("the event has no key")?, event);
        }
        let versions = self.versions(newest.keys().copied(), session).await?;
        let (mut updates, mut deletes) = (Vec::new(), Vec::new());
        for (key, event) in newest {
            if versions.get(key).is_some_and(|&version| version >= event.seq() as i64) {
                continue;
            }
            match document(key, event)? {
                Some(document) => updates.push(doc! { "q": { "_id": key }, "u": document, "upsert": true }),
                None => deletes.push(doc! { "q": { "_id": key }, "limit": 1 }),
            }
        }
        let name = self.documents.name();
        if !updates.is_empty() {
            self.run(doc! { "update": name, "updates": updates, "ordered": true }, session).await?;
        }
        if !deletes.is_empty() {
            self.run(doc! { "delete": name, "deletes": deletes, "ordered": true }, session).await?;
        }
        Ok(())
    }

    /// The versions (`_v`) of the existing documents with these keys.
    async fn versions(
        &self,
        keys: impl Iterator<Item = &str>,
        session: &mut ClientSession,
    ) -> Result<HashMap<String, i64>, HandlerError> {
        let keys: Vec<&str> = keys.collect();
        let find = self.documents.find(doc! { "_id": { "$in": keys } }).projection(doc! { "_v": 1 });
        let mut found = find.session(&mut *session).await?;
        let mut found = found.stream(session);
        let mut versions = HashMap::new();
        while let Some(document) = found.try_next().await? {
            if let (Ok(key), Ok(version)) = (document.get_str("_id"), document.get_i64("_v")) {
                versions.insert(key.to_owned(), version);
            }
        }
        Ok(versions)
    }

    /// Runs a write command, and checks its response for write errors, which the driver does not do.
    async fn run(&self, command: Document, session: &mut ClientSession) -> Result<(), HandlerError> {
        let answer = match self.database.run_command(command).session(session).await {
            Ok(answer) => answer,
            Err(error) if crate::errors::is_code(&error, DUPLICATE_KEY) => {
                return Err(self.refused(&crate::errors::reason(&error)).into());
            }
            Err(error) => return Err(error.into()),
        };
        let failed = answer.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document());
        let Some(failed) = failed else { return Ok(()) };
        let message = failed.get_str("errmsg").unwrap_or("unknown error");
        match failed.get_i32("code") {
            Ok(DUPLICATE_KEY) => Err(self.refused(message).into()),
            _ => Err(message.into()),
        }
    }

    fn refused(&self, message: &str) -> String {
        format!("a unique index of {} refuses it: {message}", self.documents.name())
    }
}

/// The document of an event; `None` if it deletes its key.
fn document(key: &str, event: &Event) -> Result<Option<Document>, HandlerError> {
    let payload = bson_of_json(event.payload()).ok_or("a document cannot hold the payload")?;
    let mut document = match payload {
        Bson::Null => return Ok(None),
        Bson::Document(fields) => fields,
        other => doc! { "value": other },
    };
    OWN_FIELDS.iter().for_each(|name| drop(document.remove(name)));
    if let Some(name) = document.keys().find(|name| name.starts_with('$')) {
        return Err(format!("a field of a document cannot begin with $: {name}").into());
    }
    document.insert("_id", key);
    document.insert("_key", key);
    document.insert("_v", event.seq() as i64);
    document.insert("_ts", event.ts());
    Ok(Some(document))
}

impl MongoProjection for Changelog {
    fn fold<'a>(
        &'a mut self,
        event: &'a Event,
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.write(std::slice::from_ref(event), session))
    }

    fn fold_all<'a>(
        &'a mut self,
        events: &'a [Event],
        session: &'a mut ClientSession,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(self.write(events, session))
    }

    fn clear(&mut self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(async move {
            let written = doc! { "_v": { "$exists": true } };
            self.documents.delete_many(written).write_concern(majority()).await?;
            Ok(())
        })
    }
}
