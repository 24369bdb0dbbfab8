//! Checks what the server supports: transactions and change streams require a replica set.

use crate::errors::reason;
use mongodb::bson::doc;
use mongodb::options::ClientOptions;
use mongodb::{Client, Database};
use std::time::Duration;

/// The default server selection timeout: an operation fails after this time without a server.
const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The server lacks a feature that a helper requires, or cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server is standalone.
    #[error(
        "{what} needs {needs}, which a single MongoDB server does not have: start it as a replica set (mongod --replSet rs0, then rs.initiate()); one member is enough"
    )]
    Standalone {
        /// The helper that requires the feature.
        what: &'static str,
        /// The feature.
        needs: &'static str,
    },
    /// The connection string is not valid. The message contains no credentials.
    #[error("{0}")]
    ConnectionString(String),
    /// The server did not respond, or refused.
    #[error("{}", reason(.0))]
    Driver(mongodb::error::Error),
}

impl From<mongodb::error::Error> for ServerError {
    /// Written by hand, because `#[from]` would also make the error the `source`, and the message already contains it.
    fn from(error: mongodb::error::Error) -> Self {
        Self::Driver(error)
    }
}

/// Opens a database by a connection string, for programs without their own client. `name` is the name of the database; `None` means the one
/// in the connection string.
///
/// # Errors
/// [`ServerError`] if the connection string is not valid, or no database is given. Nothing is sent to the server yet.
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
            "the connection string contains no database: write mongodb://host/NAME, or use --database NAME";
        return Err(ServerError::ConnectionString(why.to_owned()));
    };
    Ok(Client::with_options(options)?.database(&name))
}

/// Whether the server supports transactions and change streams.
pub(crate) async fn has_change_streams(database: &Database) -> mongodb::error::Result<bool> {
    let hello = database.run_command(doc! { "hello": 1 }).await?;
    Ok(hello.contains_key("setName") || hello.get_str("msg").is_ok_and(|it| it == "isdbgrid"))
}

/// # Errors
/// [`ServerError::Standalone`] unless the server is a member of a replica set, or the router (mongos) of a sharded cluster.
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

/// The write concern of the helpers: a confirmed write is on the disks of a majority.
pub(crate) fn majority() -> mongodb::options::WriteConcern {
    let concern = mongodb::options::WriteConcern::builder();
    concern.w(mongodb::options::Acknowledgment::Majority).journal(true).build()
}
