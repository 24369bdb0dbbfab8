//! Arguments as they are typed. What they mean together with environment and config file is `config`'s business.

mod operate;
mod remote;

use crate::cmd::bench::Load;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand};
use prombus_server::{Scope, ScopeError};
use std::path::PathBuf;

pub use operate::{BackupArgs, OutboxArgs, OutboxCommand, TopicCommand};
pub use remote::{
    DlqCommand, DlqListArgs, DlqShowArgs, ExportArgs, ExportFrom, ImportArgs, Order, RedriveArgs, ReplayArgs,
    ServerArgs,
};

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
  prombus repair --data ./prombus-data          list what the disk cannot read
  prombus token new --name billing --scope 'subscribe:orders.**'
  prombus topic list                            what is on a running server
  prombus export orders.new -o orders.ndjson    and back with `prombus import orders.ndjson`
  prombus dlq redrive orders.new --yes          once more, what groups gave up
  prombus backup /var/backups/prombus           a copy of everything, while it runs
  prombus bench publish fan-out                 how fast it is here";

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
    /// List what the disk cannot read in a data folder, and give it up with --accept-loss
    #[command(after_help = REPAIR_HELP)]
    Repair(RepairArgs),
    /// Make tokens for [[auth.token]] of the config
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Measure speed and latency, and account for every message
    #[command(after_help = BENCH_HELP)]
    Bench(BenchArgs),
    /// List, show, set and delete topics
    #[command(subcommand, arg_required_else_help = true, after_help = operate::TOPIC_HELP)]
    Topic(TopicCommand),
    /// Write the events of a topic as lines of JSON
    #[command(after_help = remote::EXPORT_HELP)]
    Export(ExportArgs),
    /// Publish lines of JSON, with their ids
    #[command(after_help = remote::IMPORT_HELP)]
    Import(ImportArgs),
    /// Publish the events of a topic to another topic
    #[command(after_help = remote::REPLAY_HELP)]
    Replay(ReplayArgs),
    /// Dead letters: what is there, and publishing it again
    #[command(subcommand, arg_required_else_help = true, after_help = remote::DLQ_HELP)]
    Dlq(DlqCommand),
    /// Copy everything of a running server to a folder
    #[command(after_help = operate::BACKUP_HELP)]
    Backup(BackupArgs),
    /// Publish what services wrote into the outbox of their database
    #[command(subcommand, arg_required_else_help = true, after_help = operate::OUTBOX_HELP)]
    Outbox(OutboxCommand),
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
  prombus serve --demo --store memory:
  prombus serve --listen 127.0.0.1:9000 --data /var/lib/prombus
  WS_TOKEN=secret prombus serve --listen 0.0.0.0:8090 --tls-cert cert.pem --tls-key key.pem
  prombus serve --store memory: --log debug";

const VERIFY_HELP: &str = "\
Exit code: 0 no fault, 1 faults, 2 could not run (no such folder, or a server has it open).";

const BENCH_HELP: &str = "\
Without --url a server is started for each load, with its data in a new folder in --data, and removed
afterwards. A disk should be under it: in a folder that lives in memory durability costs nothing.
What is published is read back and compared: lost, doubled and out of order must be 0.

Exit code: 0 all came once and in order, 1 not, or it did not work.

Examples:
  prombus bench
  prombus bench publish --connections 4 --seconds 60
  prombus bench latency --rate 10000 --url ws://127.0.0.1:8090
  prombus bench publish publish-to-ack --in-process
  prombus bench fan-out --groups 100 --size 64 --json";

/// What `bench` takes.
#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// What to measure; all of them if none is named
    #[arg(value_name = "LOAD")]
    pub loads: Vec<Load>,
    /// A running server, e.g. ws://127.0.0.1:8090
    #[arg(long, value_name = "URL", conflicts_with = "in_process")]
    pub url: Option<String>,
    /// The token for it
    #[arg(long, env = "WS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Measure the library in this process, without a server
    #[arg(long)]
    pub in_process: bool,
    /// Where the data of what is started goes
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,
    /// How long each load publishes
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = positive)]
    pub seconds: f64,
    /// Publish so many messages instead, in all
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Bytes of a payload, at least 37
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = size)]
    pub size: usize,
    /// Unanswered messages of one connection at most, and (up to 100000) unacked deliveries of a group
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count)]
    pub window: usize,
    /// Connections that publish [default: 1; the load connections: 1000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: Option<u16>,
    /// Groups of the load fan-out
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = count)]
    pub groups: usize,
    /// Topics of the load topics
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count)]
    pub topics: usize,
    /// Messages a second of the load latency
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = positive)]
    pub rate: f64,
    /// Publish with ids that the client makes, as SDKs do
    #[arg(long)]
    pub client_ids: bool,
    /// Do not read back what was published
    #[arg(long)]
    pub no_verify: bool,
    /// How often to run everything
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e9);
    number.ok_or_else(|| "a number above 0, and at most 1e9, is wanted".to_owned())
}

fn count(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| (1..=10_000_000).contains(number));
    number.ok_or_else(|| "a whole number from 1 to 10000000 is wanted".to_owned())
}

fn size(text: &str) -> Result<usize, String> {
    const LEAST: usize = prombus_bench::stamp::MIN_PAYLOAD_BYTES;
    // What `max_payload_bytes` can be at most.
    const MOST: usize = 16 << 20;
    let number = text.parse::<usize>().ok().filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from {LEAST} to {MOST} is wanted"))
}

/// What `serve` takes.
#[derive(Clone, Debug, Default, ClapArgs)]
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
    /// Publish sample heartbeats and project them to states of processes, for a look around
    #[arg(long)]
    pub demo: bool,
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

const REPAIR_HELP: &str = "\
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
    #[arg(long, value_name = "DIR", env = "PROMBUS_DATA", default_value = "./prombus-data")]
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
    text.parse().map_err(|error: ScopeError| crate::one_line(&anyhow::Error::from(error)))
}
