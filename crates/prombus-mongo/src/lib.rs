//! The MongoDB engine of prombus: events, groups and the leader's lease in a MongoDB database (5.3 or newer).
//!
//! ```text
//! MongoStore ── lease.rs: who leads          takeover.rs: a new leader
//!    └── MongoDatabase ── commit.rs: one fenced bulk at a time, lost answers
//!                         read.rs, search.rs: events, binary search   remove.rs: cleaning
//!                         snapshots.rs: the catalog in pieces         derived.rs: for people and tools
//! ```
//!
//! **Invariants:** every commit is one ordered bulk that begins with a numbered fence, so a process that no longer leads writes
//! nothing. Readers see only events of commits that were answered.

mod availability;
mod bson_writer;
mod bulk;
mod catalog;
mod collections;
mod commit;
mod cut;
mod database;
mod dedupe;
mod derived;
mod document;
mod errors;
mod fence;
mod keys;
mod lease;
mod options;
mod payload_bson;
mod read;
mod remote;
mod remove;
mod search;
mod snapshots;
mod store;
mod takeover;
mod usage;
mod writer;

pub use database::MongoDatabase;
pub use options::MongoOptions;
pub use store::MongoStore;
