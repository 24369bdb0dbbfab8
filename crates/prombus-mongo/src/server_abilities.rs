//! What the server can do: transactions and change streams need a replica set.

use crate::errors::reason;
use mongodb::Database;
use mongodb::bson::doc;

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
    /// It did not answer, or refused.
    #[error("{}", reason(.0))]
    Driver(#[from] mongodb::error::Error),
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
