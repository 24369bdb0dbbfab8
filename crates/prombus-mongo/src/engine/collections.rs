//! The collections and indexes of a store.

use crate::errors::reason;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Collection, Database};
use prombus::OpenError;
use std::time::{Duration, Instant};

/// How often the progress of a long index build is logged.
const PROGRESS: Duration = Duration::from_secs(5);

/// The collections of one store. All reads go to the primary: on a secondary that lags, new events would seem to have been removed by
/// cleaning (retention or compaction).
#[derive(Clone, Debug)]
pub(crate) struct Collections {
    pub(crate) database: Database,
    pub(crate) events: Collection<RawDocumentBuf>,
    /// The collection `events`, but reads return only documents that a failover cannot remove.
    pub(crate) events_majority: Collection<RawDocumentBuf>,
    pub(crate) snapshots: Collection<Document>,
    pub(crate) leader: Collection<Document>,
    pub(crate) topics: Collection<Document>,
    pub(crate) cursors: Collection<Document>,
}

impl Collections {
    pub(crate) fn new(database: &Database, prefix: &str) -> Self {
        let name = |name: &str| format!("{prefix}{name}");
        let options = |concern: ReadConcern| {
            mongodb::options::CollectionOptions::builder()
                .read_concern(concern)
                .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
                .build()
        };
        let (local, majority) = (options(ReadConcern::local()), options(ReadConcern::majority()));
        Self {
            database: database.clone(),
            events: database.collection_with_options(&name("events"), local.clone()),
            events_majority: database.collection_with_options(&name("events"), majority.clone()),
            snapshots: database.collection_with_options(&name("snapshots"), majority.clone()),
            leader: database.collection_with_options(&name("leader"), majority),
            topics: database.collection_with_options(&name("topics"), local.clone()),
            cursors: database.collection_with_options(&name("cursors"), local),
        }
    }

    /// Creates missing collections and indexes. Logs the progress, because indexes of a large collection take a while.
    pub(crate) async fn ensure(&self) -> Result<(), OpenError> {
        self.ensure_events().await?;
        for (name, keys, options) in event_indexes() {
            let mut index = doc! { "name": name, "key": keys };
            index.extend(options);
            let command = doc! { "createIndexes": self.events.name(), "indexes": [index] };
            self.run_with_progress(name, command).await?;
        }
        let names = doc! { "createIndexes": self.topics.name(), "indexes": [{ "name": "name", "key": { "name": 1 } }] };
        self.run_with_progress("name", names).await
    }

    /// Creates `events`, clustered by `_id`. An existing collection that is not clustered is refused, because prombus did not create it.
    async fn ensure_events(&self) -> Result<(), OpenError> {
        let failed = |error| OpenError::Store(format!("cannot create collections: {}", reason(&error)));
        let create = doc! {
            "create": self.events.name(),
            "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "name": "topic and seq" },
        };
        let created = self.database.run_command(create).await;
        if let Err(error) = created
            && !crate::errors::is_code(&error, crate::errors::NAMESPACE_EXISTS)
        {
            return Err(failed(error));
        }
        let filter = doc! { "name": self.events.name() };
        let list = doc! { "listCollections": 1, "filter": filter };
        let listed = self.database.run_command(list).await.map_err(failed)?;
        let first = listed.get_document("cursor").ok().and_then(|cursor| cursor.get_array("firstBatch").ok());
        let first = first.and_then(|batch| batch.first()).and_then(|it| it.as_document());
        let is_clustered = first
            .and_then(|it| it.get_document("options").ok())
            .is_some_and(|options| options.contains_key("clusteredIndex"));
        if is_clustered {
            return Ok(());
        }
        Err(OpenError::Store(format!(
            "the collection {}.{} exists and was not made by prombus; name another database or set prefix in [mongodb]",
            self.database.name(),
            self.events.name(),
        )))
    }

    async fn run_with_progress(&self, index: &str, command: Document) -> Result<(), OpenError> {
        let started = Instant::now();
        let mut running = std::pin::pin!(async { self.database.run_command(command).await });
        let built: MongoResult<Document> = loop {
            tokio::select! {
                built = &mut running => break built,
                () = tokio::time::sleep(PROGRESS) => {
                    let progress = self.index_progress().await.unwrap_or_default();
                    tracing::info!("building the index {index:?}: {} s{progress}", started.elapsed().as_secs());
                }
            }
        };
        if started.elapsed() > PROGRESS {
            tracing::info!("the index {index:?} is ready after {} s", started.elapsed().as_secs());
        }
        let failed =
            |error| OpenError::Store(format!("cannot create the index {index:?}: {}", reason(&error)));
        built.map(|_| ()).map_err(failed)
    }

    /// The progress of an index build. `None` if it is not known, for example because the MongoDB user is not allowed to query it.
    async fn index_progress(&self) -> Option<String> {
        let command = doc! { "currentOp": 1, "$ownOps": true, "progress": { "$exists": true } };
        let answer = self.database.client().database("admin").run_command(command).await.ok()?;
        let running = answer.get_array("inprog").ok()?.first()?.as_document()?;
        Some(format!(", {}", running.get_str("msg").ok()?))
    }
}

/// Names, keys and options of the indexes of `events`.
fn event_indexes() -> [(&'static str, Document, Document); 3] {
    let exists = |field: &str| doc! { field: { "$exists": true } };
    [
        (
            "publishers' ids",
            doc! { "topic_no": 1, "client_id": 1 },
            doc! { "unique": true, "partialFilterExpression": exists("client_id") },
        ),
        (
            "keys",
            doc! { "topic_no": 1, "key": 1, "seq": -1 },
            doc! { "partialFilterExpression": exists("key") },
        ),
        (
            "cleaned ids",
            doc! { "expire_at": 1 },
            doc! { "expireAfterSeconds": 0, "partialFilterExpression": exists("expire_at") },
        ),
    ]
}
