//! The settings that `serve` works with, in the types of the crates that use them, and their defaults.

use super::store_url::StoreUrl;
use prombus::{Limits, TopicRule};
use prombus_log::Options as LogOptions;
use prombus_server::ServerOptions;
use std::path::PathBuf;

/// The data folder, if none is named.
pub const DATA: &str = "./prombus-data";

const MEMORY_BYTES: u64 = 4 << 30;

/// Everything that `serve` needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The gateway's.
    pub server: ServerOptions,
    /// The bus's.
    pub bus: BusSettings,
    /// Where other gateways of the same store reach this one; without it, the first listen address.
    pub advertise: Option<String>,
    /// How to log.
    pub log: LogSettings,
}

/// Where events live, and its bounds.
#[derive(Clone, Debug)]
pub struct BusSettings {
    /// Which store.
    pub store: StoreChoice,
    /// Bounds of any store.
    pub limits: Limits,
    /// For the log.
    pub log: LogOptions,
    /// For the memory.
    pub memory_bytes: u64,
    /// For MongoDB.
    pub mongodb: MongoSettings,
    /// What counts for topics.
    pub topics: Vec<TopicRule>,
}

/// How a MongoDB database is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongoSettings {
    /// The database; without it, the one in the URL, else `prombus`.
    pub database: Option<String>,
    /// Names of collections begin with this.
    pub prefix: String,
    /// Payloads are stored as BSON too.
    pub readable: bool,
    /// `majority`, a number of members, or the name of a custom write concern.
    pub write_concern: String,
}

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The log in a folder.
    Log(PathBuf),
    /// Memory.
    Memory,
    /// A MongoDB database, which several gateways can share.
    MongoDb(StoreUrl),
}

/// How to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// What, in the syntax of tracing's filters.
    pub filter: String,
    /// As what.
    pub format: LogFormat,
}

/// What log lines look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        let bus = BusSettings {
            store: StoreChoice::Log(PathBuf::from(DATA)),
            limits: Limits::default(),
            log: LogOptions::default(),
            memory_bytes: MEMORY_BYTES,
            mongodb: MongoSettings {
                database: None,
                prefix: String::new(),
                readable: true,
                write_concern: "majority".to_owned(),
            },
            topics: Vec::new(),
        };
        let log = LogSettings { filter: "info".to_owned(), format: LogFormat::Text };
        Self { server: ServerOptions::default(), bus, advertise: None, log }
    }
}
