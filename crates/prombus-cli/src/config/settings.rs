//! The settings of `serve`, in the types of the crates that use them, and their defaults.

use super::store_url::StoreUrl;
use prombus::{Limits, TopicRule};
use prombus_log::Options as LogOptions;
use prombus_server::ServerOptions;
use std::path::PathBuf;

/// The default data folder.
pub const DATA: &str = "./prombus-data";

/// The default capacity of the memory store.
const MEMORY_BYTES: u64 = 4 << 30;

/// All settings of `serve`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of the server.
    pub server: ServerOptions,
    /// Settings of the bus.
    pub bus: BusSettings,
    /// The address that other gateways of the same store connect to; by default the first listen address.
    pub advertise: Option<String>,
    /// Settings of logging.
    pub log: LogSettings,
}

/// The store and its limits.
#[derive(Clone, Debug)]
pub struct BusSettings {
    /// The store.
    pub store: StoreChoice,
    /// Limits that apply to every store.
    pub limits: Limits,
    /// Options of the log store.
    pub log: LogOptions,
    /// The capacity of the memory store.
    pub memory_bytes: u64,
    /// Options of the MongoDB store.
    pub mongodb: MongoSettings,
    /// The rules of `[[topic]]`, in the order of the file.
    pub topics: Vec<TopicRule>,
}

/// How a MongoDB database is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongoSettings {
    /// The database; by default the one in the URL, or `prombus` if the URL names none.
    pub database: Option<String>,
    /// Prefix of the collection names.
    pub prefix: String,
    /// Whether payloads are also stored as BSON.
    pub readable: bool,
    /// `majority`, a number of members, or the name of a custom write concern.
    pub write_concern: String,
}

/// A choice of store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// The log store of prombus, in this folder.
    Log(PathBuf),
    /// Events are kept in memory only.
    Memory,
    /// A MongoDB database, which several gateways can share.
    MongoDb(StoreUrl),
}

/// Settings of logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// What to log, in the syntax of tracing's filters.
    pub filter: String,
    /// The format of log lines.
    pub format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
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
