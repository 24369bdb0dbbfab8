//! One file per command, and what several of them use: `copier`, `filter`, `instant`, `pace`, `progress`, `remote`, `table`.

pub mod backup;
pub mod bench;
pub mod config;
mod copier;
pub mod dlq;
pub mod export;
pub mod filter;
pub mod import;
pub mod instant;
pub mod outbox;
mod pace;
mod progress;
mod remote;
pub mod repair;
pub mod replay;
pub mod serve;
mod table;
pub mod token;
pub mod topic;
pub mod verify;
