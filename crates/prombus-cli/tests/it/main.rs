//! The binary as a user runs it: what it prints and how it exits.
#![cfg(test)]

mod arguments;
mod bench;
mod config;
mod connections;
mod demo;
mod export_memory;
mod full_disk;
mod hostile;
mod http_client;
mod kill;
mod long_form;
mod operating_doc;
mod readme;
mod serve;
mod serving;
mod soak;
mod support;
mod token;
mod verify;
mod ws_client;
