//! One file per command, and the modules that several commands share: `progress`, `rate_limiter`, `republish`, `server_client`,
//! `table`.

pub mod backup;
pub mod bench;
pub mod config;
pub mod dlq;
pub mod export;
pub mod import;
pub mod outbox;
mod progress;
mod rate_limiter;
pub mod repair;
pub mod replay;
mod republish;
pub mod serve;
mod server_client;
mod table;
pub mod token;
pub mod topic;
pub mod verify;
