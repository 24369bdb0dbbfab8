//! Opens the outbox to drain: a SQLite table or a MongoDB collection.

use crate::args::OutboxArgs;
use anyhow::{Context, bail};
use prombus::outbox::{OutboxStore, SqliteOutbox};
use rusqlite::{Connection, OpenFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The outbox to drain, with its name for messages.
pub(super) enum Source {
    Sqlite(String, SqliteOutbox),
    #[cfg(feature = "mongodb")]
    Mongodb(String, prombus_mongo::MongoOutbox),
}

impl Source {
    pub(super) async fn open(args: &OutboxArgs) -> anyhow::Result<Self> {
        match (&args.sqlite, &args.mongodb) {
            (Some(path), _) => {
                let name = path.display().to_string();
                if !args.init {
                    check_exists(path)?;
                }
                let outbox = SqliteOutbox::open(path).with_context(|| name.clone())?;
                Ok(Self::Sqlite(name, outbox))
            }
            (None, Some(url)) => Self::open_mongodb(args, url).await,
            (None, None) => bail!("no outbox is named; give --sqlite FILE or --mongodb URL"),
        }
    }

    #[cfg(feature = "mongodb")]
    async fn open_mongodb(args: &OutboxArgs, url: &str) -> anyhow::Result<Self> {
        let database = prombus_mongo::open_database(url, args.database.as_deref()).await?;
        let name = format!("MongoDB {}.{}", database.name(), args.collection);
        if !args.init {
            let names = database.list_collection_names().await;
            let names = names.map_err(prombus_mongo::ServerError::from).with_context(|| name.clone())?;
            // A mistyped name must not create a collection.
            if !names.contains(&args.collection) {
                let (database, collection) = (database.name(), &args.collection);
                bail!("the database {database} has no collection {collection}; --init creates it");
            }
        }
        let outbox = prombus_mongo::MongoOutbox::open_collection(&database, &args.collection).await;
        Ok(Self::Mongodb(name.clone(), outbox.with_context(|| name)?))
    }

    #[cfg(not(feature = "mongodb"))]
    #[expect(clippy::unused_async, reason = "the same signature as with MongoDB")]
    async fn open_mongodb(_args: &OutboxArgs, _url: &str) -> anyhow::Result<Self> {
        bail!("this prombus was built without MongoDB support (feature mongodb)")
    }

    pub(super) fn store(&self) -> Arc<dyn OutboxStore> {
        match self {
            Self::Sqlite(_, outbox) => Arc::new(outbox.clone()),
            #[cfg(feature = "mongodb")]
            Self::Mongodb(_, outbox) => Arc::new(outbox.clone()),
        }
    }

    /// How many rows have each status.
    pub(super) async fn counts(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        Ok(match self {
            Self::Sqlite(_, outbox) => outbox.counts().await?,
            #[cfg(feature = "mongodb")]
            Self::Mongodb(_, outbox) => outbox.counts().await.map_err(prombus_mongo::ServerError::from)?,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(name, _) => formatter.write_str(name),
            #[cfg(feature = "mongodb")]
            Self::Mongodb(name, _) => formatter.write_str(name),
        }
    }
}

/// Checks that the file is a database with an outbox. A mistyped name must not create a database.
fn check_exists(path: &Path) -> anyhow::Result<()> {
    let file = path.display();
    if !path.is_file() {
        bail!("no file {file}; --init creates it");
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .with_context(|| file.to_string())?;
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'outbox')";
    let has_table: bool =
        connection.query_row(sql, [], |row| row.get(0)).with_context(|| file.to_string())?;
    if !has_table {
        bail!("{file} has no table outbox; --init creates it");
    }
    Ok(())
}
