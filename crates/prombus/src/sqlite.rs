//! A SQLite connection as this crate uses it: write-ahead log, a sync for every commit, a busy timeout for other processes.
//! Calls run off the async threads, because they wait for the disk.

use parking_lot::Mutex;
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a statement waits for another process's write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call of the database failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The runtime is shutting down, or the closure panicked.
    #[error("the database call did not complete: {0}")]
    NotDone(String),
}

/// A handle of a connection; clones share the connection.
#[derive(Clone)]
pub(crate) struct Database {
    connection: Arc<Mutex<Connection>>,
}

impl Database {
    pub(crate) fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        Self::over(Connection::open(path)?)
    }

    /// Configures an open connection and takes it over.
    pub(crate) fn over(connection: Connection) -> Result<Self, rusqlite::Error> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // An in-memory database stays in journal mode "memory", which is fine: it has nothing to recover.
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        // A reported commit must survive a power cut: in WAL mode only FULL syncs every commit.
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Calls `work` with the connection, in this thread.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        work(&mut self.connection.lock())
    }

    /// Calls `work` with the connection, in a thread that may block. `work` runs to its end even if this future is dropped.
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
