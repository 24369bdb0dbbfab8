//! What the server can do: transactions and change streams need a replica set.

use crate::errors::reason;
use mongodb::bson::doc;
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use std::time::Duration;

/// Unless the connection string says otherwise: an operation fails after this time without a server.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The server cannot do what a helper needs, or cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It runs alone.
    #[error(
        "{what} needs {needs}, which a single MongoDB server does not have: start it as a replica set (mongod --replSet rs0, then rs.initiate()); one member is enough"
    )]
    Standalone {
        /// What needs it.
        what: &'static str,
        /// What is needed.
        needs: &'static str,
    },
    /// The connection string is wrong. The message has no credentials.
    #[error("{0}")]
    ConnectionString(String),
    /// It did not answer, or refused.
    #[error("{}", reason(.0))]
    Driver(mongodb::error::Error),
}

impl From<mongodb::error::Error> for ServerError {
    /// Not as a source: the message has all of it.
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}

/// Opens a database by a connection string, for programs that have no client of their own. Without a name, it is the database that
/// the connection string names.
///
/// # Errors
/// [`ServerError`]: the connection string is wrong, or names no database. Nothing is sent to the server yet.
pub async fn open_database(url: &str, name: Option<&str>) -> Result<Database, ServerError> {
    let parsed = ClientOptions::parse(url).await;
    let mut options = parsed.map_err(|error| {
        // The driver's messages may quote the connection string.
        let text = reason(&error).replace(url, "<connection string>");
        ServerError::ConnectionString(format!("the MongoDB connection string is not valid: {text}"))
    })?;
    options.app_name.get_or_insert_with(|| "prombus".to_owned());
    options.server_selection_timeout.get_or_insert(SERVER_SELECTION_TIMEOUT);
    let Some(name) = name.map(str::to_owned).or_else(|| options.default_database.clone()) else {
        let why =
            "the connection string names no database: write mongodb://host/NAME, or use --database NAME";
        return Err(ServerError::ConnectionString(why.to_owned()));
    };
    Ok(Client::with_options(options)?.database(&name))
}

/// Whether the server has transactions and change streams.
pub(crate) async fn has_change_streams(database: &Database) -> mongodb::error::Result<bool> {
    let hello = database.run_command(doc! { "hello": 1 }).await?;
    Ok(hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|it| it == "isdbgrid"))
}

/// # Errors
/// [`ServerError::Standalone`] unless the server is a member of a replica set, or a router.
pub(crate) async fn require_replica_set(
    database: &Database,
    what: &'static str,
    needs: &'static str,
) -> Result<(), ServerError> {
    match has_change_streams(database).await? {
        true => Ok(()),
        false => Err(ServerError::Standalone { what, needs }),
    }
}

/// What is answered has reached a majority, and its disks.
pub(crate) fn majority() -> mongodb::options::WriteConcern {
    let concern = mongodb::options::WriteConcern::builder();
    concern.w(mongodb::options::Acknowledgment::Majority).journal(true).build()
}
