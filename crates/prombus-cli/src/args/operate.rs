//! Arguments of commands for operators of a running server.

use super::remote::ServerArgs;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

pub(super) const TOPIC_HELP: &str = "\
Examples:
  prombus topic list
  prombus topic show orders.new
  prombus topic set orders.new retention_days=30
  prombus topic set prices compaction=true max_attempts=
  prombus topic delete orders.old --yes";

const SET_HELP: &str = "\
Sets something about a topic, above what the config file says; what is not named stays as it is, and
`key=` takes a single one back. The token needs the scope admin.

Keys:
  retention_days, retention_ms   how long events are kept
  retention_bytes                so many bytes of the newest events are kept
  compaction                     true: only the newest event of each key is kept
  tombstone_ms                   how long the deletion of a key is kept
  snapshot_interval_ms           how often changes go to the snapshot topic; 0 for never
  snapshot_topic                 where to
  max_attempts                   deliveries before an event becomes a dead letter
  publish_rate, publish_burst    events a second, and at once

Examples:
  prombus topic set orders.new retention_days=30 retention_bytes=1000000000
  prombus topic set prices compaction=true
  prombus topic set prices retention_days=";

/// What can be done with topics.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// All topics
    List {
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
    #[command(after_help = SET_HELP)]
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
The server copies everything that is on its disk at this moment, while it goes on. DIR is a folder on the
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
