//! Connects to a store in MongoDB, and opens its engine as the leader.

use crate::engine::collections::Collections;
use crate::engine::database::{Identity, MongoDatabase};
use crate::engine::document::DOCUMENT_OVERHEAD;
use crate::engine::lease::MongoLease;
use crate::engine::options::MongoOptions;
use crate::errors::{DUPLICATE_KEY, is_code, reason};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, WriteConcern};
use prombus::engine::network::{NetworkEngine, NetworkLimits, network_runtime};
use prombus::engine::{Engine, LeaseStore, SharedStore, Takeover};
use prombus::{BoxFuture, Clock, OpenError, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The version of the document format. A store with a newer version is refused.
const FORMAT: i32 = 1;
/// The number of possible values of `id_mark`.
const ID_MARKS: u64 = 1 << 22;
/// MongoDB's own databases.
const RESERVED_DATABASES: [&str; 3] = ["admin", "config", "local"];
/// The largest payload. A dead letter that contains the whole event must fit a document of 16 MB.
const PAYLOAD_BYTES_MAX: usize = 15 << 20;
/// The largest event. It must fit a document of 16 MB, with the fields that the engine adds.
const EVENT_BYTES_MAX: usize = 16_600_000;
/// The default server selection timeout: an operation fails after this time without a server.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The oldest version with clustered collections.
const SERVER_MIN: (i32, i32) = (5, 3);

/// A store in a MongoDB database.
pub struct MongoStore {
    client: ClientOptions,
    options: MongoOptions,
    database: String,
    lease: MongoLease,
    /// The bits that mark the ids which engines of this store generated.
    id_mark: u64,
}

fn bad(why: impl std::fmt::Display) -> OpenError {
    OpenError::Store(why.to_string())
}

impl MongoStore {
    /// Connects, and creates missing collections and indexes.
    ///
    /// # Errors
    /// [`OpenError`] if the options are not valid, or the server cannot be reached or used. Messages contain no credentials.
    pub async fn connect(options: MongoOptions) -> Result<Self, OpenError> {
        if options.max_payload_bytes > PAYLOAD_BYTES_MAX {
            let (name, value) = ("max_payload_bytes", options.max_payload_bytes.to_string());
            return Err(OpenError::BadSetting {
                name,
                value,
                allowed: "with MongoDB, at most 15728640 (15 MiB) is allowed",
            });
        }
        if options.write_concern.is_empty()
            || options.write_concern.parse::<i64>().is_ok_and(|count| count < 1)
        {
            let (name, value) = ("write_concern", options.write_concern.clone());
            let allowed = "only \"majority\", a number of members (at least 1), or the name of a write concern is allowed";
            return Err(OpenError::BadSetting { name, value, allowed });
        }
        let client_options = client_options(&options).await?;
        let named = client_options.default_database.clone();
        let database = options.database.clone().or(named).unwrap_or_else(|| "prombus".to_owned());
        if RESERVED_DATABASES.contains(&database.as_str()) {
            return Err(bad(format!(
                "{database} is a database of MongoDB itself: set another one as [mongodb] database. If it only contains the user, write authSource={database} in the connection string"
            )));
        }
        let client = Client::with_options(client_options.clone()).map_err(|error| bad(reason(&error)))?;
        let cannot = |error| bad(format!("cannot use MongoDB: {}", reason(&error)));
        check_version(&client).await?;
        let collections = Collections::new(&client.database(&database), &options.prefix);
        collections.ensure().await?;
        let id_mark = store_identity(&collections).await.map_err(cannot)??;
        Ok(Self { client: client_options, options, database, lease: MongoLease::new(collections), id_mark })
    }

    /// Takes over the store. Runs on the runtime of the engine that will use the store.
    async fn open_engine(
        client: ClientOptions,
        database: String,
        options: MongoOptions,
        (takeover, id_mark): (Takeover, u64),
        clock: Arc<dyn Clock>,
    ) -> Result<(MongoDatabase, prombus::engine::network::FoundState), OpenError> {
        let client = Client::with_options(client).map_err(|error| bad(reason(&error)))?;
        let collections = Collections::new(&client.database(&database), &options.prefix);
        let writer_token = Uuid::new_v4().into_bytes();
        let identity = Identity { term: takeover.term, writer_token, id_mark };
        let mut database = MongoDatabase::new(collections, options, identity, clock);
        let found = database.take_over(takeover).await?;
        let state = found.writer.catalog.found(0, id_mark).map_err(OpenError::Groups)?;
        database.start_with(found.writer, found.commits);
        Ok((database, state))
    }

    fn limits(&self) -> NetworkLimits {
        NetworkLimits {
            event_bytes_max: EVENT_BYTES_MAX,
            event_overhead_bytes: DOCUMENT_OVERHEAD,
            tail_bytes: self.options.tail_bytes,
            ..NetworkLimits::default()
        }
    }
}

impl SharedStore for MongoStore {
    fn location(&self) -> String {
        let hosts: Vec<String> = self.client.hosts.iter().map(ToString::to_string).collect();
        format!("mongodb://{}/{}", hosts.join(","), self.database)
    }

    fn lease(&self) -> &dyn LeaseStore {
        &self.lease
    }

    fn lead(
        &self,
        takeover: Takeover,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'_, Result<Arc<dyn Engine>, OpenError>> {
        Box::pin(async move {
            let limits = self.limits();
            let runtime = OpeningRuntime(Some(network_runtime(limits.threads)?));
            let (client, options, database) =
                (self.client.clone(), self.options.clone(), self.database.clone());
            // The driver's tasks run on the runtime where the client is created.
            let opening =
                Self::open_engine(client, database, options, (takeover, self.id_mark), Arc::clone(&clock));
            let opened = runtime.get().spawn(opening).await;
            let (database, found) =
                opened.map_err(|error| bad(format!("opening the store failed: {error}")))??;
            let database = Arc::new(database);
            let runtime = runtime.keep();
            runtime.spawn(Arc::clone(&database).run_background());
            let engine: Arc<dyn Engine> =
                Arc::new(NetworkEngine::start(database, found, limits, clock, runtime));
            Ok(engine)
        })
    }
}

/// A runtime that is shut down in the background if the engine is not opened, because it must not be dropped on an async thread.
struct OpeningRuntime(Option<Runtime>);

impl OpeningRuntime {
    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("the runtime is present until `keep` takes it")
    }

    fn keep(mut self) -> Runtime {
        self.0.take().expect("`keep` consumes the value")
    }
}

impl Drop for OpeningRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn client_options(options: &MongoOptions) -> Result<ClientOptions, OpenError> {
    // The driver's messages may quote the connection string.
    let parsed = ClientOptions::parse(&options.url).await;
    let mut client = parsed.map_err(|error| {
        let text = reason(&error).replace(&options.url, "<connection string>");
        bad(format!("the MongoDB connection string is not valid: {text}"))
    })?;
    client.app_name.get_or_insert_with(|| "prombus".to_owned());
    client.server_selection_timeout.get_or_insert(SERVER_SELECTION_TIMEOUT);
    client.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    // No retries by the driver: a bulk that it sends again could be written after a newer leader has removed it.
    client.retry_writes = Some(false);
    client
        .write_concern
        .get_or_insert_with(|| WriteConcern::builder().w(mongodb::options::Acknowledgment::Majority).build());
    Ok(client)
}

async fn check_version(client: &Client) -> Result<(), OpenError> {
    let info = client.database("admin").run_command(doc! { "buildInfo": 1 }).await;
    let info = info.map_err(|error| bad(format!("cannot connect to MongoDB: {}", reason(&error))))?;
    let text = info.get_str("version").unwrap_or("unknown").to_owned();
    let mut parts = text.split('.').map(|part| part.parse::<i32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < SERVER_MIN {
        return Err(bad(format!(
            "the server runs MongoDB {text}; prombus needs {}.{} or newer (clustered collections)",
            SERVER_MIN.0, SERVER_MIN.1
        )));
    }
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
    let hello = hello.map_err(|error| bad(format!("cannot connect to MongoDB: {}", reason(&error))))?;
    if hello.get_str("msg").is_ok_and(|it| it == "isdbgrid") {
        return Err(bad("this is a sharded cluster (mongos), which may split a commit: use a replica set"));
    }
    Ok(())
}

/// The bits that mark the ids which engines of this store generated. The first process that connects chooses them.
async fn store_identity(collections: &Collections) -> mongodb::error::Result<Result<u64, OpenError>> {
    let filter = doc! { "_id": "store" };
    let mark = i64::from(Uuid::new_v4().as_fields().0) & (ID_MARKS as i64 - 1);
    let document: Document = doc! { "_id": "store", "format": FORMAT, "id_mark": mark };
    let concern = WriteConcern::builder().w(mongodb::options::Acknowledgment::Majority).journal(true).build();
    match collections.leader.insert_one(document).write_concern(concern).await {
        Ok(_) => return Ok(Ok(mark as u64)),
        Err(error) if is_code(&error, DUPLICATE_KEY) => {}
        Err(error) => return Err(error),
    }
    let Some(found) = collections.leader.find_one(filter).await? else {
        return Ok(Err(bad("another process is creating this store; try again")));
    };
    let format = found.get_i32("format").unwrap_or(i32::MAX);
    if format > FORMAT {
        let why =
            format!("the store has format {format}; this program knows up to {FORMAT}: use a newer prombus");
        return Ok(Err(bad(why)));
    }
    match found.get_i64("id_mark").ok().and_then(|mark| u64::try_from(mark).ok()) {
        Some(mark) if mark < ID_MARKS => Ok(Ok(mark)),
        _ => Ok(Err(bad("the document \"store\" of the collection leader is damaged: id_mark"))),
    }
}
