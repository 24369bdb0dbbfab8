//! The MongoDB engine against real servers. `tests/mongodb/install` fetches them.

#![allow(clippy::unwrap_used, missing_docs)]

mod conformance;
mod servers;
