//! Command-line arguments as the user gave them. `config` merges them with the environment and the config file.

mod bench;
mod context;
mod duration;
mod events;
pub mod filter;
mod generate;
mod group;
mod json;
mod name;
mod number;
mod offline;
mod operate;
mod remote;
mod serve;
mod server;
mod status;

use clap::{Parser, Subcommand};

pub use bench::{BenchArgs, Load};
pub use context::{ContextAddArgs, ContextCommand};
pub use events::{ColorWhen, FormatArgs, PubArgs, SubArgs, TailArgs};
pub use generate::{CompletionsArgs, ManArgs, Shell};
pub use group::{GroupCommand, GroupCreateArgs, GroupName, GroupSeekArgs, GroupSettleArgs, VerdictArg};
pub use json::JsonArgs;
pub use offline::{ConfigCommand, InspectArgs, RepairArgs, TokenCommand, VerifyArgs};
pub use operate::{BackupArgs, OutboxArgs, OutboxCommand, TopicCommand};
pub use remote::{
    DiscardArgs, DlqCommand, DlqListArgs, DlqShowArgs, ExportArgs, ExportFrom, ImportArgs, LetterSelection,
    Order, RedriveArgs, ReplayArgs, ServerArgs,
};
pub use serve::ServeArgs;
pub use server::{DEFAULT_URL, ServerValues};
pub use status::{HealthArgs, SettingsArgs, StateArgs};

/// A durable event bus in one binary: a publish that is answered with OK is on disk.
#[derive(Debug, Parser)]
#[command(name = "prombus", version, arg_required_else_help = true, after_help = after_help())]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{EXIT_CODES}\n\n{ENVIRONMENT}")
}

const EXIT_CODES: &str = "\
Exit codes:
  0          success
  1          failure: the server refused or cannot be reached, a file is faulty, some events were not processed
  2          wrong arguments; `verify`, `repair` and `inspect`: the command could not run
  129        ended by SIGHUP (`sub`)
  130, 143   ended by Ctrl-C (SIGINT) or SIGTERM; `serve` and `outbox drain` end with 0
  141        the reader of the output closed the pipe, as `head` does";

const ENVIRONMENT: &str = "\
Environment:
  PROMBUS_URL, PROMBUS_TOKEN, PROMBUS_CA_CERT, PROMBUS_CONTEXT
                   the same as --url, --token, --ca-cert and --context of the commands that use a server
  PROMBUS_CONTEXTS the file of contexts (`prombus context --help`)
  NO_COLOR         no colours, if it is set
  PROMBUS_...      settings of the server (`prombus serve --help`)";

const EXAMPLES: &str = "\
Examples:
  prombus serve                                 listen on 127.0.0.1:8090, keep data in ./prombus-data
  prombus config default > prombus.toml         write a config file with every setting and its default
  prombus config check prombus.toml             find unknown keys and bad values, with their line numbers
  prombus serve --config prombus.toml
  prombus verify --data ./prombus-data          check every file and report each fault
  prombus repair --data ./prombus-data          list data that the disk cannot read
  prombus token new --name billing --scope 'subscribe:orders.**'
  prombus pub orders.new '{\"total\": 12}'        publish an event
  prombus tail orders.new -f                    print the newest events, then new ones
  prombus sub orders.new --group billing --exec ./charge.sh
  prombus topic list                            list the topics of a running server
  prombus group show orders.new billing         show a group: members, leases, lag
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
    /// Publish an event, or one event per line of standard input
    #[command(after_help = events::PUB_HELP)]
    Pub(PubArgs),
    /// Receive events as a member of a consumer group: print them, or run a command for each
    #[command(after_help = events::SUB_HELP)]
    Sub(SubArgs),
    /// Print the newest events of a topic or pattern, and follow new ones
    #[command(after_help = events::TAIL_HELP)]
    Tail(TailArgs),
    /// Print or check a config file
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// Check every file of a data folder and report each fault; changes nothing
    #[command(after_help = offline::VERIFY_HELP)]
    Verify(VerifyArgs),
    /// List data that the disk cannot read; --accept-loss gives it up
    #[command(after_help = offline::REPAIR_HELP)]
    Repair(RepairArgs),
    /// Show what a file of a data folder contains
    #[command(after_help = offline::INSPECT_HELP)]
    Inspect(InspectArgs),
    /// Create tokens for [[auth.token]] in the config file
    #[command(subcommand, arg_required_else_help = true)]
    Token(TokenCommand),
    /// Measure throughput and latency, and check that no message is lost, duplicated or out of order
    #[command(after_help = bench::BENCH_HELP)]
    Bench(BenchArgs),
    /// List, show, configure and delete topics
    #[command(subcommand, arg_required_else_help = true, after_help = operate::TOPIC_HELP)]
    Topic(TopicCommand),
    /// List, show, create, seek, pause, resume and delete groups, and settle their events
    #[command(subcommand, arg_required_else_help = true, after_help = group::GROUP_HELP)]
    Group(GroupCommand),
    /// Show the newest event of each key of a topic
    #[command(after_help = status::STATE_HELP)]
    State(StateArgs),
    /// Check that a server is healthy and ready
    #[command(after_help = status::HEALTH_HELP)]
    Health(HealthArgs),
    /// Show the effective settings of a server, and where they come from
    #[command(after_help = status::SETTINGS_HELP)]
    Settings(SettingsArgs),
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
    /// Name servers, and choose the one that commands use
    #[command(subcommand, arg_required_else_help = true, after_help = context::CONTEXT_HELP)]
    Context(ContextCommand),
    /// Print the completions for a shell
    #[command(after_help = generate::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print the man page, or write a page for each command to a folder
    #[command(after_help = generate::MAN_HELP)]
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeMap;

    #[test]
    fn definitions_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_server_is_named_in_the_same_way_everywhere() {
        fn collect(command: &clap::Command, into: &mut BTreeMap<String, Vec<String>>) {
            for flag in ["url", "token", "ca-cert", "context"] {
                let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
                if let Some(help) = arg.and_then(clap::Arg::get_help) {
                    into.entry(flag.to_owned()).or_default().push(help.to_string());
                }
            }
            // A benchmark takes its server only from flags, and a context is what the other commands refer to.
            let others =
                command.get_subcommands().filter(|it| !["bench", "context"].contains(&it.get_name()));
            others.for_each(|command| collect(command, into));
        }
        let mut helps = BTreeMap::new();
        collect(&Args::command(), &mut helps);
        for (flag, mut texts) in helps {
            assert!(texts.len() > 8, "--{flag} is missing in some commands: {texts:?}");
            texts.dedup();
            assert_eq!(texts.len(), 1, "--{flag}: {texts:?}");
        }
    }
}
