//! SQLite as this crate uses it: write-ahead log, a sync for every commit, patience with other processes; and off the async
//! threads, because it waits for the disk.

use parking_lot::Mutex;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a statement waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a database did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The runtime is going down, or what ran on the connection panicked.
    #[error("the work on the database was not done: {0}")]
    NotDone(String),
}

/// A connection. A handle: clones share it.
#[derive(Clone)]
pub(crate) struct Database {
    connection: Arc<Mutex<Connection>>,
}

impl Database {
    pub(crate) fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        Self::over(Connection::open(path)?)
    }

    /// Takes a connection, and sets it up.
    pub(crate) fn over(connection: Connection) -> Result<Self, rusqlite::Error> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // A database in memory answers "memory", which is as good as it gets.
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        // What was answered must survive a power cut: in this mode alone every commit is synced.
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Works on the connection, in this thread.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        work(&mut self.connection.lock())
    }

    /// Works on the connection, in a thread that may wait. It is done to its end also when nobody awaits it any more.
    pub(crate) async fn call<T, F>(&self, work: F) -> Result<T, DatabaseError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    {
        let database = self.clone();
        let done = tokio::task::spawn_blocking(move || database.with(work)).await;
        done.map_err(|error| DatabaseError::NotDone(error.to_string()))?.map_err(DatabaseError::Sqlite)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Database")
    }
}
