//! Options of the MongoDB engine.

use crate::engine::bulk::WriteConcern;
use mongodb::options::Acknowledgment;

/// How a store in MongoDB is opened.
#[derive(Clone)]
pub struct MongoOptions {
    /// The connection string, with credentials and options of the driver.
    pub url: String,
    /// The database. Default: the one in the connection string, otherwise `prombus`.
    pub database: Option<String>,
    /// The prefix of collection names: `<prefix>events` and so on.
    pub prefix: String,
    /// Whether payloads are stored as BSON too, for queries.
    pub readable: bool,
    /// `majority`, a number of members, or the name of a custom write concern.
    pub write_concern: String,
    /// How long an id that a publisher chose is remembered after cleaning removed its event, in milliseconds.
    pub dedupe_ms: u64,
    /// The maximum size of the tail cache: the newest events of all topics, kept in memory and read without a request.
    pub tail_bytes: usize,
    /// The maximum size of an event's payload; at most 15 MiB.
    pub max_payload_bytes: usize,
    /// A snapshot of topics and groups is written after this many commits, so that a takeover has few commits to read.
    pub snapshot_commits: u64,
}

impl MongoOptions {
    /// The defaults for a connection string.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            database: None,
            prefix: String::new(),
            readable: true,
            write_concern: "majority".to_owned(),
            dedupe_ms: 7 * 24 * 3_600_000,
            tail_bytes: 64 << 20,
            max_payload_bytes: 1 << 20,
            snapshot_commits: 10_000,
        }
    }

    pub(crate) fn write_concern(&self) -> WriteConcern<'_> {
        self.write_concern.parse().map_or(WriteConcern::Tag(&self.write_concern), WriteConcern::Nodes)
    }

    /// The write concern for documents that decide about leadership and about the outcome of commits. It does not depend on the write
    /// concern of events.
    pub(crate) fn majority(&self) -> mongodb::options::WriteConcern {
        mongodb::options::WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build()
    }

    /// The write concern of events, for operations of the driver.
    pub(crate) fn driver_write_concern(&self) -> mongodb::options::WriteConcern {
        let acknowledgment = match self.write_concern() {
            WriteConcern::Nodes(count) => Acknowledgment::Nodes(u32::try_from(count).unwrap_or(1)),
            WriteConcern::Tag("majority") => Acknowledgment::Majority,
            WriteConcern::Tag(tag) => Acknowledgment::Custom(tag.to_owned()),
        };
        mongodb::options::WriteConcern::builder().w(acknowledgment).journal(true).build()
    }
}

impl std::fmt::Debug for MongoOptions {
    /// Omits the connection string, which may contain a password.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("MongoOptions")
            .field("database", &self.database)
            .field("prefix", &self.prefix)
            .field("readable", &self.readable)
            .field("write_concern", &self.write_concern)
            .finish_non_exhaustive()
    }
}
