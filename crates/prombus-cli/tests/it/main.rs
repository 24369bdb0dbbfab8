//! Tests of the binary as a user runs it: what it prints, and how it exits.
#![cfg(test)]

mod arguments;
mod backup;
mod bench;
mod bulk;
mod cli_frame;
mod client;
mod config;
mod connections;
mod contrib;
mod demo;
mod dlq;
mod export_memory;
mod full_disk;
mod group;
mod guides;
mod hostile;
mod http_client;
mod kill;
mod long_form;
mod operating_doc;
mod outbox;
mod patterns;
mod publish;
mod read_errors;
mod readme;
mod reload;
mod remote;
mod running;
mod serve;
mod serving;
#[cfg(feature = "server-tests")]
mod shared_store;
mod soak;
mod state;
mod stopped;
mod sub;
mod support;
mod tail;
mod token;
mod topic;
mod verify;
mod ws_client;
