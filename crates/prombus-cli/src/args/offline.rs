//! Arguments of commands that need no running server: config, verify, repair, token.

use crate::config::DATA;
use crate::messages::one_line;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Subcommand};
use prombus_server::{Scope, ScopeError};
use std::path::PathBuf;

pub(super) const VERIFY_HELP: &str = "\
Exit code: 0 no fault, 1 faults, 2 could not run (no such folder, or a server has it open).";

/// What can be done with a config file.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the default config: every key, with its default and what it does
    Default,
    /// Check a config file: unknown keys and bad values, with their lines
    Check {
        /// The file
        file: PathBuf,
    },
}

/// What `verify` takes.
#[derive(Debug, ClapArgs)]
pub struct VerifyArgs {
    /// The data folder
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = DATA)]
    pub data: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) const REPAIR_HELP: &str = "\
Reads everything in a data folder that no server has open, and lists the places that the disk cannot read and the \
events in them. Nothing is changed unless --accept-loss is given: then these places count as damaged from now on, and \
the server starts and continues without the events in them. What can be read again later is served again.

Exit codes: 0 nothing is lost or the loss is accepted; 1 places cannot be read; 2 it could not run.

Examples:
  prombus repair --data ./prombus-data
  prombus repair --data ./prombus-data --accept-loss
  curl -X POST -d '{\"accept_loss\": true}' http://127.0.0.1:8090/repair    on a running server";

/// What `repair` takes.
#[derive(Debug, ClapArgs)]
pub struct RepairArgs {
    /// The data folder
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = DATA)]
    pub data: PathBuf,
    /// Give up what cannot be read: it counts as damaged from now on
    #[arg(long)]
    pub accept_loss: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a random token; prints it once, and the block for the config with its hash
    New {
        /// What logs, rules and metrics call it
        #[arg(long, default_value = "client", value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// What it may do: publish:<pattern>, subscribe:<pattern> or admin; may be given more than once
        #[arg(long, value_name = "SCOPE", value_parser = scope, default_values = ["publish:**", "subscribe:**"])]
        scope: Vec<Scope>,
    },
    /// Read a token from standard input and print its hash
    Hash,
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|error: ScopeError| one_line(&anyhow::Error::from(error)))
}
