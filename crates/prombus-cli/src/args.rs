//! Arguments as they are typed. What they mean together with environment and config file is `config`'s business.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand};
use prombus_server::{Scope, ScopeError};
use std::path::PathBuf;

/// A durable event bus in one program: every publish that was answered is on disk.
#[derive(Debug, Parser)]
#[command(name = "prombus", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  prombus serve                                 serve on 127.0.0.1:8090, data in ./prombus-data
  prombus config default > prombus.toml         a config file with every setting and its default
  prombus config check prombus.toml             find typos and bad values, with their lines
  prombus serve --config prombus.toml
  prombus verify --data ./prombus-data          read everything and report each fault
  prombus token new --name billing --scope 'subscribe:orders.**'";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve WebSocket and HTTP
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Print or check a config file
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// Read everything in a data folder and report each fault; changes nothing
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Make tokens for [[auth.token]] of the config
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
}

const SERVE_HELP: &str = "\
A config file is read only when --config or PROMBUS_CONFIG names it.
A flag goes over the environment, that over the config file, that over the default.

Environment:
  WS_PORT          the port in place of 8090 (--listen and PROMBUS_LISTEN go over it)
  HTTP_PORT        one more listener, on 127.0.0.1
  WS_TOKEN         a token that may do everything; without it, or tokens in the config,
                   only this machine gets in
  PROMBUS_<KEY>, PROMBUS_<SECTION>_<KEY>
                   every key of the config, e.g. PROMBUS_DATA, PROMBUS_LIMITS_MAX_CONNECTIONS;
                   lists are separated by commas

Examples:
  prombus serve
  prombus serve --listen 127.0.0.1:9000 --data /var/lib/prombus
  WS_TOKEN=secret prombus serve --listen 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem
  prombus serve --store memory: --log debug";

const VERIFY_HELP: &str = "\
Exit code: 0 no fault, 1 faults, 2 could not run (no such folder, or a server has it open).";

/// What `serve` takes.
#[derive(Debug, Default, ClapArgs)]
pub struct ServeArgs {
    /// Where to listen; may be given more than once [default: 127.0.0.1:8090]
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// The folder for events and groups [default: ./prombus-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<String>,
    /// Where events live: log: (in the data folder) or memory: (gone at exit) [default: log:]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// A config file; see `prombus config default`
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Certificate chain in PEM: wss and https only
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Key of the certificate in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Let other machines in although no auth is configured
    #[arg(long)]
    pub insecure: bool,
    /// What to log: error, warn, info, debug, trace, or a filter like info,prombus_server=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

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
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = "./prombus-data")]
    pub data: PathBuf,
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
    text.parse().map_err(|error: ScopeError| crate::one_line(&anyhow::Error::from(error)))
}
