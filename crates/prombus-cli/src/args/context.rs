//! Arguments of `context`.

use super::json::JsonArgs;
use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

pub(super) const CONTEXT_HELP: &str = "\
A context is a name for a server: its URL, and optionally a token and a CA certificate. Contexts are kept in \
$XDG_CONFIG_HOME/prombus/contexts.toml, or ~/.config/prombus/contexts.toml; PROMBUS_CONTEXTS names another file. The file \
contains tokens, so only its owner may read it (mode 0600); a file that others can read is refused.

Precedence: --url and --token, then --context, then PROMBUS_URL and PROMBUS_TOKEN, then PROMBUS_CONTEXT, then the context \
that `prombus context use` has chosen, then http://127.0.0.1:8090. The token of a context is sent only to the server of \
that context: with --url or PROMBUS_URL for another server it is not used. PROMBUS_TOKEN is not sent to the server that \
--context names, unless PROMBUS_URL is the URL of the same server.

Examples:
  prombus context add prod --url https://bus.example --token-file token.txt
  pass show prombus | prombus context add prod --url https://bus.example --token-file -
  prombus context use prod
  prombus context list
  prombus topic list --context prod";

/// Subcommands of `context`.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Add a named server
    Add(ContextAddArgs),
    /// Choose the context that commands use by default
    Use {
        /// The context
        #[arg(required_unless_present = "none")]
        name: Option<String>,
        /// Use no context
        #[arg(long, conflicts_with = "name")]
        none: bool,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// List the contexts; tokens are not shown
    List {
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Show a context, without its token
    Show {
        /// The context [default: the one that is in use]
        name: Option<String>,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Remove a context
    Remove {
        /// The context
        name: String,
        #[command(flatten)]
        json: JsonArgs,
    },
}

/// Arguments of `context add`.
#[derive(Debug, ClapArgs)]
pub struct ContextAddArgs {
    /// The name: letters, digits, '-', '_' and '.'
    pub name: String,
    /// The server's URL: http://, https://, ws:// or wss://
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// Token for the server; other users of this machine can see it while the command runs, unlike with --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File that contains the token; - is standard input
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file with certificates to trust, in addition to those that this machine trusts
    #[arg(long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// Also choose it as the context that commands use by default
    #[arg(long = "use")]
    pub is_chosen: bool,
    /// Replace a context that has this name
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}
