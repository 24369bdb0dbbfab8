//! prombus and MongoDB (5.3 or newer): an engine that keeps events and groups there, and helpers for services whose own data is
//! there, whatever engine their bus runs on.
//!
//! - [`MongoStore`] is the engine: `prombus serve --store mongodb://…`.
//! - [`MongoOutbox`]: events that are written in the service's transaction and published later.
//! - [`MongoDedupe`] remembers what was handled; [`MongoExactlyOnce`] commits that together with what the handler wrote.
//! - [`MongoProjector`] folds a topic into documents, [`ChangelogProjector`] keeps a collection like a topic.
//! - [`Changefeed`] publishes the changes of a collection.

mod bson_writer;
mod changefeed;
mod dedupe;
mod engine;
mod errors;
mod exactly_once;
mod figures_text;
mod json;
mod outbox;
mod payload_bson;
mod projector;
mod server_abilities;
mod transaction;

pub use changefeed::{
    Change, ChangeKind, Changefeed, ChangefeedError, ChangefeedFigures, ChangefeedHandle, ChangefeedOptions,
    FullDocument,
};
pub use dedupe::MongoDedupe;
pub use engine::database::MongoDatabase;
pub use engine::options::MongoOptions;
pub use engine::store::MongoStore;
pub use exactly_once::MongoExactlyOnce;
/// The driver, in the version that this crate uses.
pub use mongodb;
pub use outbox::MongoOutbox;
pub use projector::{
    ChangelogOptions, ChangelogProjector, MongoProjection, MongoProjector, MongoProjectorError,
    MongoProjectorFigures, MongoProjectorHandle, MongoProjectorOptions,
};
pub use server_abilities::{ServerError, open_database};
pub use transaction::HandlerError;
