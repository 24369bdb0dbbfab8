//! One file per command, and the modules that several commands share: `confirm`, `event_printer`, `json_text`, `progress`,
//! `rate_limiter`, `republish`, `server_client`, `style`, `table`.

pub mod backup;
pub mod bench;
pub mod completions;
pub mod config;
mod confirm;
pub mod context;
pub mod dlq;
mod event_printer;
pub mod export;
pub mod group;
pub mod health;
pub mod import;
pub mod inspect;
mod json_text;
pub mod man;
pub mod outbox;
mod progress;
pub mod publish;
mod rate_limiter;
pub mod repair;
pub mod replay;
mod republish;
pub mod serve;
mod server_client;
pub mod settings;
pub mod state;
pub mod style;
pub mod sub;
mod table;
pub mod tail;
pub mod token;
pub mod topic;
pub mod verify;
