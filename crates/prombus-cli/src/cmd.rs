//! One file per command.

pub mod bench;
pub mod config;
pub mod serve;
pub mod token;
pub mod verify;
