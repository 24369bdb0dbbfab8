//! Arguments of commands for operators of a running server.

use super::remote::ServerArgs;
use crate::config::topic_keys;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

pub(super) const TOPIC_HELP: &str = "\
Examples:
  prombus topic list
  prombus topic show orders.new
  prombus topic set orders.new retention_days=30
  prombus topic set prices compaction=true max_attempts=
  prombus topic delete orders.old --yes";

fn set_help() -> String {
    let keys = topic_keys();
    format!(
        "\
Sets something about a topic, which takes precedence over the config file. What is not named stays as it is, and \
`key=` removes a single one. The token needs the scope admin.

Keys:
{keys}
Examples:
  prombus topic set orders.new retention_days=30 retention_bytes=1000000000
  prombus topic set prices compaction=true
  prombus topic set prices retention_days="
    )
}

/// What can be done with topics.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// All topics
    List {
        /// Only topics whose names begin with this
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// One topic, with what is set about it
    Show {
        /// The topic
        topic: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Set something about a topic
    #[command(after_help = set_help())]
    Set {
        /// The topic
        topic: String,
        /// What to set; without a value: what to take back
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete a topic with all its events, and the groups that read nothing else
    Delete {
        /// The topic
        topic: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(super) const BACKUP_HELP: &str = "\
The server copies everything that is on its disk at this moment, while it goes on. DIR is a folder on the \
server's machine that is new or empty. The token needs the scope admin.

Examples:
  prombus backup /var/backups/prombus-monday
  prombus verify --data /var/backups/prombus-monday
  prombus serve --data /var/backups/prombus-monday --listen 127.0.0.1:9000";

/// What `backup` takes.
#[derive(Debug, ClapArgs)]
pub struct BackupArgs {
    /// Where to, on the server's machine; a new or empty folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const OUTBOX_HELP: &str = "\
A service writes events into the table or collection `outbox` of its own database, in the transaction of its business. \
This publishes them, each once: under the row's id, so that a crash in between makes no second event.

Examples:
  prombus outbox drain --sqlite shop.db --to ws://127.0.0.1:8090
  prombus outbox drain --sqlite shop.db --init --once
  prombus outbox drain --mongodb mongodb://127.0.0.1/shop --to ws://127.0.0.1:8090
  sqlite3 shop.db \"INSERT INTO outbox (id, topic, payload) VALUES ('order-17', 'orders', '{}')\"";

/// What can be done with an outbox.
#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Publish the rows of an outbox, until it is stopped
    #[command(after_help = OUTBOX_HELP)]
    Drain(OutboxArgs),
}

/// What `outbox drain` takes.
#[derive(Debug, ClapArgs)]
#[command(group(clap::ArgGroup::new("outbox").required(true)))]
pub struct OutboxArgs {
    /// The SQLite database of the service
    #[arg(long, value_name = "FILE", group = "outbox")]
    pub sqlite: Option<PathBuf>,
    /// The MongoDB server of the service, as a connection string
    #[arg(
        long,
        value_name = "URL",
        env = "PROMBUS_OUTBOX_MONGODB",
        hide_env_values = true,
        group = "outbox"
    )]
    pub mongodb: Option<String>,
    /// The database there [default: the one in the connection string]
    #[arg(long, value_name = "NAME", requires = "mongodb")]
    pub database: Option<String>,
    /// The collection there
    #[arg(long, value_name = "NAME", default_value = "outbox", requires = "mongodb")]
    pub collection: String,
    /// The server to publish to
    #[arg(long, value_name = "URL", env = "PROMBUS_URL", default_value = "http://127.0.0.1:8090")]
    pub to: String,
    /// The token for it; WS_TOKEN if neither is there
    #[arg(long, env = "PROMBUS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// What it is called in the rows that it holds; no two that run may have the same [default: a new name]
    #[arg(long, value_name = "NAME")]
    pub worker: Option<String>,
    /// Rows that go together
    #[arg(long, value_name = "ROWS", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// How long it may take over them before another drainer may have them
    #[arg(long, value_name = "MS", default_value = "30000", value_parser = clap::value_parser!(u64).range(1..))]
    pub lease_ms: u64,
    /// How often it looks when nothing is there
    #[arg(long, value_name = "MS", default_value = "250", value_parser = clap::value_parser!(u64).range(1..))]
    pub interval_ms: u64,
    /// Publish what is there, and end
    #[arg(long)]
    pub once: bool,
    /// Make the table or the collection, if it is not there
    #[arg(long)]
    pub init: bool,
}
