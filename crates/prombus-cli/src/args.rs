//! Arguments as they are typed. What they mean together with environment and config file is `config`'s business.

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
    #[command(after_help = serve::SERVE_HELP)]
    Serve(ServeArgs),
    /// Print or check a config file
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// Read everything in a data folder and report each fault; changes nothing
    #[command(after_help = offline::VERIFY_HELP)]
    Verify(VerifyArgs),
    /// List what the disk cannot read in a data folder, and give it up with --accept-loss
    #[command(after_help = offline::REPAIR_HELP)]
    Repair(RepairArgs),
    /// Make tokens for [[auth.token]] of the config
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Measure speed and latency, and account for every message
    #[command(after_help = bench::BENCH_HELP)]
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
