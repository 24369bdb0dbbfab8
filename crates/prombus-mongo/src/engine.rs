//! The MongoDB engine: stores events, groups and the leader lease in a MongoDB database.
//!
//! ```text
//! MongoStore ── lease.rs: the leader lease   takeover.rs: a new leader
//!    └── MongoDatabase ── commit.rs: commits, one at a time; lost responses
//!                         read.rs, search.rs: events, binary search   remove.rs: cleaning
//!                         snapshots.rs: the catalog in pieces         derived.rs: collections for people
//! ```
//!
//! **Invariants:** every commit is one ordered bulk insert. Its first document is its fence, whose `_id` contains the number of the commit.
//! After a takeover, the number of the previous leader's next commit is taken, so the server refuses that commit as a whole. Readers see
//! only events of commits that the database has confirmed.

pub(crate) mod availability;
pub(crate) mod bulk;
pub(crate) mod catalog;
pub(crate) mod collections;
pub(crate) mod commit;
pub(crate) mod cut;
pub(crate) mod database;
pub(crate) mod dedupe;
pub(crate) mod derived;
pub(crate) mod document;
pub(crate) mod fence;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod options;
pub(crate) mod read;
pub(crate) mod remote;
pub(crate) mod remove;
pub(crate) mod search;
pub(crate) mod snapshots;
pub(crate) mod store;
pub(crate) mod takeover;
pub(crate) mod usage;
pub(crate) mod writer;
