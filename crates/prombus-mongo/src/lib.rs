//! prombus with MongoDB (5.3 or newer): an engine that stores events and groups in MongoDB, and helpers for services that keep their own
//! data in MongoDB, whatever the engine of their bus.
//!
//! - [`MongoStore`] is the engine: `prombus serve --store mongodb://…`.
//! - [`MongoOutbox`] stores events in the service's transaction and publishes them later.
//! - [`MongoDedupe`] records which events were handled. [`MongoExactlyOnce`] commits this record together with the handler's writes.
//! - [`MongoProjector`] folds a topic into documents. [`ChangelogProjector`] copies the newest event of each key to a collection.
//! - [`Changefeed`] publishes the changes of a collection.

mod bson_writer;
mod changefeed;
mod dedupe;
mod engine;
mod errors;
mod exactly_once;
mod figures_text;
mod helper_task;
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
/// The MongoDB driver, in the version that this crate uses.
pub use mongodb;
pub use outbox::MongoOutbox;
pub use projector::{
    ChangelogOptions, ChangelogProjector, MongoProjection, MongoProjector, MongoProjectorError,
    MongoProjectorFigures, MongoProjectorHandle, MongoProjectorOptions,
};
pub use server_abilities::{ServerError, open_database};
pub use transaction::HandlerError;
