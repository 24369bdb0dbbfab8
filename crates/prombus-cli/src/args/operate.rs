//! Arguments of commands for a running server: topic, backup, outbox.

use super::json::JsonArgs;
use super::name;
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
Changes settings of one topic. They take precedence over the config file. Settings that are not named keep their \
values; `key=` without a value removes a setting. The token needs the scope admin.

Keys:
{keys}
Examples:
  prombus topic set orders.new retention_days=30 retention_bytes=1000000000
  prombus topic set prices compaction=true
  prombus topic set prices retention_days="
    )
}

/// Subcommands of `topic`.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// List all topics
    List {
        /// Only topics whose names begin with this text
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one topic and its settings
    Show {
        /// The topic
        #[arg(value_parser = name::topic)]
        topic: String,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Change settings of a topic
    #[command(after_help = set_help())]
    Set {
        /// The topic
        #[arg(value_parser = name::topic)]
        topic: String,
        /// The settings to change; KEY= without a value removes a setting
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<String>,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete a topic with all its events, and the groups that read only this topic
    Delete {
        /// The topic
        #[arg(value_parser = name::topic)]
        topic: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(super) const BACKUP_HELP: &str = "\
The server copies all events, groups and settings that are stored at this moment, and keeps serving meanwhile. DIR is a \
new or empty folder on the server's machine. The token needs the scope admin.

Examples:
  prombus backup /var/backups/prombus-monday
  prombus verify --data /var/backups/prombus-monday
  prombus serve --data /var/backups/prombus-monday --listen 127.0.0.1:9000";

/// Arguments of `backup`.
#[derive(Debug, ClapArgs)]
pub struct BackupArgs {
    /// A new or empty folder on the server's machine
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const OUTBOX_HELP: &str = "\
A service writes events to the table or collection `outbox` of its own database, in the same transaction as its other \
changes. This command publishes them. Each event's id comes from the row's id (a UUID is used unchanged, other text is \
hashed to a UUID), so a crash between publishing a row and marking it as sent does not create a second event.

Examples:
  prombus outbox drain --sqlite shop.db --to ws://127.0.0.1:8090
  prombus outbox drain --sqlite shop.db --init --once
  prombus outbox drain --mongodb mongodb://127.0.0.1/shop --to ws://127.0.0.1:8090
  sqlite3 shop.db \"INSERT INTO outbox (id, topic, payload) VALUES ('order-17', 'orders', '{}')\"";

/// Subcommands of `outbox`.
#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Publish the rows of an outbox until stopped
    #[command(after_help = OUTBOX_HELP)]
    Drain(OutboxArgs),
}

/// Arguments of `outbox drain`.
#[derive(Debug, ClapArgs)]
#[command(group(clap::ArgGroup::new("outbox").required(true)), mut_arg("url", |url| url.visible_alias("to")))]
pub struct OutboxArgs {
    /// The SQLite database of the service
    #[arg(long, value_name = "FILE", group = "outbox")]
    pub sqlite: Option<PathBuf>,
    /// The connection string of the service's MongoDB server
    #[arg(
        long,
        value_name = "URL",
        env = "PROMBUS_OUTBOX_MONGODB",
        hide_env_values = true,
        group = "outbox"
    )]
    pub mongodb: Option<String>,
    /// The MongoDB database [default: the one in the connection string]
    #[arg(long, value_name = "NAME", requires = "mongodb")]
    pub database: Option<String>,
    /// The MongoDB collection
    #[arg(long, value_name = "NAME", default_value = "outbox", requires = "mongodb")]
    pub collection: String,
    /// Name of this drainer in the rows that it claims; must be unique among running drainers [default: a new name]
    #[arg(long, value_name = "NAME")]
    pub worker: Option<String>,
    /// Rows to claim and publish at a time
    #[arg(long, value_name = "ROWS", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// How long claimed rows belong to this drainer; afterwards another drainer may claim them
    #[arg(long, value_name = "MS", default_value = "30000", value_parser = clap::value_parser!(u64).range(1..))]
    pub lease_ms: u64,
    /// How often to check an empty outbox
    #[arg(long, value_name = "MS", default_value = "250", value_parser = clap::value_parser!(u64).range(1..))]
    pub interval_ms: u64,
    /// Publish the rows that are pending, then exit
    #[arg(long)]
    pub once: bool,
    /// Create the table or collection if it does not exist
    #[arg(long)]
    pub init: bool,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
