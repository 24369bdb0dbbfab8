//! Marks: records, kept outside the group, of the events that a consumer has handled. A mark expires after a time.
//!
//! A mark is identified by topic, group and event id, because ids are unique only within their topic.

mod memory;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod topic;

pub use memory::MemoryDedupe;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteDedupe;
pub use topic::TopicDedupe;

use crate::box_future::BoxFuture;
use crate::error::{PublishError, ReadError};
use prombus_protocol::{TopicError, Uuid};

/// How long a mark is kept by default: seven days.
pub const DEDUPE_TTL_MS: u64 = 7 * 24 * 3_600_000;

/// Ids of marks are UUIDv5 in this namespace. It must never change; otherwise existing marks would not be found.
const NAMESPACE: Uuid = Uuid::from_u128(0x2d5e_83b1_07c9_5f44_b3a6_91f0_d87c_4e12);

/// Why a mark could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedupeError {
    /// The name of the topic of marks is invalid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The mark could not be published to the topic of marks.
    #[error("a mark could not be published")]
    Publish(#[from] PublishError),
    /// The topic of marks could not be read.
    #[error("marks could not be read")]
    Read(#[from] ReadError),
    /// The database failed.
    #[cfg(feature = "sqlite")]
    #[error("the database of marks failed")]
    Sqlite(#[from] rusqlite::Error),
    /// The store failed in another way.
    #[error("{0}")]
    Other(String),
}

#[cfg(feature = "sqlite")]
impl From<crate::sqlite::DatabaseError> for DedupeError {
    fn from(error: crate::sqlite::DatabaseError) -> Self {
        match error {
            crate::sqlite::DatabaseError::Sqlite(error) => Self::Sqlite(error),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Remembers which events were handled.
pub trait DedupeStore: Send + Sync + 'static {
    /// Whether the event has a mark that has not expired.
    fn seen<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
    ) -> BoxFuture<'a, Result<bool, DedupeError>>;

    /// Marks an event for `ttl_ms`. Resolves when the mark is as durable as the store makes it. An existing mark that
    /// has not expired is not changed.
    fn mark<'a>(
        &'a self,
        topic: &'a str,
        group: &'a str,
        id: Uuid,
        ttl_ms: u64,
    ) -> BoxFuture<'a, Result<(), DedupeError>>;
}

/// Derives one id from topic, group and event id, for stores that identify a mark by a single id.
fn mark_id(topic: &str, group: &str, id: Uuid) -> Uuid {
    let mut name = Vec::with_capacity(topic.len() + group.len() + 18);
    for part in [topic, group] {
        name.extend_from_slice(part.as_bytes());
        name.push(0);
    }
    name.extend_from_slice(id.as_bytes());
    Uuid::new_v5(&NAMESPACE, &name)
}

/// When a mark that is made now expires.
fn expires_ms(now_ms: i64, ttl_ms: u64) -> i64 {
    now_ms.saturating_add(i64::try_from(ttl_ms).unwrap_or(i64::MAX))
}
