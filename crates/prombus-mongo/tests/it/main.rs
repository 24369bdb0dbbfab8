//! The MongoDB engine against real servers. `tests/mongodb/install` fetches them.

#![allow(clippy::unwrap_used, missing_docs)]

mod cleaning;
mod conformance;
mod engines;
mod killed_server;
mod lookups;
mod servers;
mod takeover;
