//! Arguments of commands that work without a server: config, verify, repair, token.

use super::json::JsonArgs;
use crate::config::DATA;
use crate::messages::one_line;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Subcommand};
use prombus_server::{Scope, ScopeError};
use std::path::PathBuf;

pub(super) const VERIFY_HELP: &str = "\
Exit code: 0 no faults; 1 faults, or data that cannot be read; 2 could not run (no such folder, or a server is using it).";

/// Subcommands of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the default config file: every key, with its meaning and default
    Default,
    /// Check a config file: print unknown keys and bad values, with their line numbers
    Check {
        /// The config file
        file: PathBuf,
        #[command(flatten)]
        json: JsonArgs,
    },
}

/// Arguments of `verify`.
#[derive(Debug, ClapArgs)]
pub struct VerifyArgs {
    /// The data folder
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = DATA)]
    pub data: PathBuf,
    #[command(flatten)]
    pub json: JsonArgs,
}

pub(super) const REPAIR_HELP: &str = "\
Reads every file of a data folder that no server is using, and lists the places that the disk cannot read, with the \
events in them. Without --accept-loss nothing is changed. With it, these places are marked as damaged, and the server \
starts and continues without the events in them. If a marked place becomes readable, its events are served again, but \
groups that settled them do not receive them.

Exit code: 0 nothing is lost, or the loss was accepted; 1 some places cannot be read; 2 could not run.

Examples:
  prombus repair --data ./prombus-data
  prombus repair --data ./prombus-data --accept-loss
  curl -X POST -d '{\"accept_loss\": true}' http://127.0.0.1:8090/repair    for a running server";

/// Arguments of `repair`.
#[derive(Debug, ClapArgs)]
pub struct RepairArgs {
    /// The data folder
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = DATA)]
    pub data: PathBuf,
    /// Give up unreadable data: mark it as damaged
    #[arg(long)]
    pub accept_loss: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}

pub(super) const INSPECT_HELP: &str = "\
Shows what a file of a data folder contains: the header and the frames of a segment with their positions (events, state \
records of groups, topics, commits), the segments that a manifest lists, the topics of a checkpoint, and so on. Of payloads \
only the sizes are shown. Checksums are checked. Nothing is changed; a server may be running. A copy must keep the file's \
name, and a segment with a damaged header needs the MANIFEST in the same folder.

Exit code: 0 no damage; 1 damage; 2 could not run (no such file, or not a file of a data folder).

Examples:
  prombus inspect prombus-data/MANIFEST
  prombus inspect prombus-data/0000000000000001.seg --limit 20
  prombus inspect prombus-data/0000000000000001.seg --json | grep '\"damaged\":true'";

/// Arguments of `inspect`.
#[derive(Debug, ClapArgs)]
pub struct InspectArgs {
    /// A file of a data folder
    pub file: PathBuf,
    /// Maximum number of lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub json: JsonArgs,
}

/// Subcommands of `token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a random token; print it once, with the config block that contains its hash
    New {
        /// Name of the token in logs, rules and metrics
        #[arg(long, default_value = "client", value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// What the token allows: publish:<pattern>, subscribe:<pattern> or admin; may be given more than once
        #[arg(long, value_name = "SCOPE", value_parser = scope, default_values = ["publish:**", "subscribe:**"])]
        scope: Vec<Scope>,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Read a token from standard input and print its hash
    Hash {
        #[command(flatten)]
        json: JsonArgs,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|error: ScopeError| one_line(&anyhow::Error::from(error)))
}
