//! Tests of the binary as a user runs it: what it prints, and how it exits.
#![cfg(test)]

mod arguments;
mod backup;
mod bench;
mod bulk;
mod client;
mod config;
mod connections;
mod demo;
mod dlq;
mod export_memory;
mod full_disk;
mod guides;
mod hostile;
mod http_client;
mod kill;
mod long_form;
mod operating_doc;
mod outbox;
mod patterns;
mod read_errors;
mod readme;
mod reload;
mod remote;
mod serve;
mod serving;
#[cfg(feature = "server-tests")]
mod shared_store;
mod soak;
mod stopped;
mod support;
mod token;
mod topic;
mod verify;
mod ws_client;
