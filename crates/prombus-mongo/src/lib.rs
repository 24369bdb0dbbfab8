//! prombus and MongoDB (5.3 or newer): an engine that keeps events and groups there, and helpers for services whose own data is
//! there.
//!
//! - [`MongoStore`] is the engine: `prombus serve --store mongodb://…`.

mod bson_writer;
mod engine;
mod errors;
mod payload_bson;

pub use engine::database::MongoDatabase;
pub use engine::options::MongoOptions;
pub use engine::store::MongoStore;
