//! Tests the MongoDB engine with real servers, which `tests/mongodb/install` downloads.

#![allow(clippy::unwrap_used, missing_docs)]

mod cleaning;
mod conformance;
mod engines;
mod killed_server;
mod lookups;
mod servers;
mod takeover;
