//! Command-line arguments as the user gave them. `config` merges them with the environment and the config file.

mod bench;
pub mod filter;
mod number;
mod offline;
mod operate;
mod remote;
mod serve;

use clap::{Parser, Subcommand};

pub use bench::{BenchArgs, Load};
pub use offline::{ConfigCommand, RepairArgs, TokenCommand, VerifyArgs};
pub use operate::{BackupArgs, OutboxArgs, OutboxCommand, TopicCommand};
pub use remote::{
    DlqCommand, DlqListArgs, DlqShowArgs, ExportArgs, ExportFrom, ImportArgs, Order, RedriveArgs, ReplayArgs,
    ServerArgs,
};
pub use serve::ServeArgs;

/// A durable event bus in one binary: a publish that is answered with OK is on disk.
#[derive(Debug, Parser)]
#[command(name = "prombus", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  prombus serve                                 listen on 127.0.0.1:8090, keep data in ./prombus-data
  prombus config default > prombus.toml         write a config file with every setting and its default
  prombus config check prombus.toml             find unknown keys and bad values, with their line numbers
  prombus serve --config prombus.toml
  prombus verify --data ./prombus-data          check every file and report each fault
  prombus repair --data ./prombus-data          list data that the disk cannot read
  prombus token new --name billing --scope 'subscribe:orders.**'
  prombus topic list                            list the topics of a running server
  prombus export orders.new -o orders.ndjson    write the events to a file; `prombus import` reads it
  prombus dlq redrive orders.new --yes          publish the events of dead letters again
  prombus backup /var/backups/prombus           copy all data of a running server
  prombus bench publish fan-out                 measure throughput and latency on this machine";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server (WebSocket and HTTP)
    #[command(after_help = serve::SERVE_HELP)]
    Serve(ServeArgs),
    /// Print or check a config file
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// Check every file of a data folder and report each fault; changes nothing
    #[command(after_help = offline::VERIFY_HELP)]
    Verify(VerifyArgs),
    /// List data that the disk cannot read; --accept-loss gives it up
    #[command(after_help = offline::REPAIR_HELP)]
    Repair(RepairArgs),
    /// Create tokens for [[auth.token]] in the config file
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Measure throughput and latency, and check that no message is lost, duplicated or out of order
    #[command(after_help = bench::BENCH_HELP)]
    Bench(BenchArgs),
    /// List, show, configure and delete topics
    #[command(subcommand, arg_required_else_help = true, after_help = operate::TOPIC_HELP)]
    Topic(TopicCommand),
    /// Export the events of a topic or pattern as JSON lines
    #[command(after_help = remote::EXPORT_HELP)]
    Export(ExportArgs),
    /// Publish events from JSON lines, keeping their ids
    #[command(after_help = remote::IMPORT_HELP)]
    Import(ImportArgs),
    /// Copy the events of a topic or pattern to another topic
    #[command(after_help = remote::REPLAY_HELP)]
    Replay(ReplayArgs),
    /// List dead letters and publish their events again
    #[command(subcommand, arg_required_else_help = true, after_help = remote::DLQ_HELP)]
    Dlq(DlqCommand),
    /// Copy all data of a running server to a folder
    #[command(after_help = operate::BACKUP_HELP)]
    Backup(BackupArgs),
    /// Publish events from the outbox table or collection of a service's database
    #[command(subcommand, arg_required_else_help = true, after_help = operate::OUTBOX_HELP)]
    Outbox(OutboxCommand),
}
