//! Tests the helpers for services with real servers.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod changefeed;
#[allow(dead_code)]
#[path = "../../../prombus/tests/it/child.rs"]
mod child;
mod exactly_once;
mod failover;
mod guide;
mod kill;
mod outbox;
mod projectors;
#[allow(dead_code)]
#[path = "../it/servers.rs"]
mod servers;
mod setup;
mod standalone;
