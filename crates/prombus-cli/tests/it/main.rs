//! The binary as a user runs it: what it prints and how it exits.
#![cfg(test)]

mod arguments;
mod config;
mod operating_doc;
mod readme;
mod serve;
mod support;
mod token;
mod verify;
