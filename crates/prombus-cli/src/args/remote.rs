//! Arguments of the commands that read and publish events on a running server.

use super::filter::FilterArgs;
use super::json::JsonArgs;
use super::name;
use super::number::positive;
pub use super::server::ServerArgs;
use crate::time;
use clap::{Args as ClapArgs, Subcommand};
use prombus_client::Uuid;
use std::path::PathBuf;

/// The time range of events to read.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct TimeArgs {
    /// Only events at or after this time: milliseconds since 1970, 2026-05-01, 2026-05-01T12:00:00Z, or relative: -90m, -1d
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    pub from_ts: Option<i64>,
    /// Only events at or before this time
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    pub to_ts: Option<i64>,
}

pub(super) const EXPORT_HELP: &str = "\
Each line is a complete event: id, seq, ts, topic, payload, and its optional fields such as key, headers and tags. \
The export ends with the event that is newest when it starts. If an export to a FILE was interrupted, --resume removes \
an incomplete last line and continues after the last complete one. The events of a pattern are in commit order.

Filters: key=…, tag=…, header.NAME=…; an event must match all of them.

Examples:
  prombus export orders.new > orders.ndjson
  prombus export orders.new -o orders.ndjson
  prombus export orders.new -o orders.ndjson --resume
  prombus export orders.new --from-ts 2026-05-01 --to-ts 2026-06-01 | gzip > may.gz
  prombus export 'orders.**' --from-ts -1d --filter key=customer-7
  prombus export orders.new --last 10                the last ten events, oldest first
  prombus export orders.new --last 10 --order desc   the last ten events, newest first";

/// Arguments of `export`.
#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The topic, or a pattern: * matches one segment of a name, ** any number
    pub topic: String,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Only the last N events; not for patterns
    #[arg(long, value_name = "N", value_parser = last_range(), conflicts_with_all = ["resume", "from", "from_ts"])]
    pub last: Option<u64>,
    /// Oldest first (asc) or newest first (desc); desc is not for patterns
    #[arg(long, value_name = "asc|desc", default_value = "asc")]
    pub order: Order,
    /// Where to start: at the earliest event, or after the event with this ID
    #[arg(long, value_name = "earliest|ID", default_value = "earliest", value_parser = export_from)]
    pub from: ExportFrom,
    #[command(flatten)]
    pub times: TimeArgs,
    /// Write to a new file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Continue after the last complete line of the file
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// Print the summary of an export to a file as JSON
    #[arg(long, requires = "output")]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Oldest first.
    Asc,
    /// Newest first.
    Desc,
}

fn last_range() -> clap::builder::RangedU64ValueParser {
    // The server returns at most this many events per page.
    clap::value_parser!(u64).range(1..=1_000_000)
}

/// Where an export starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFrom {
    /// At the first event that is kept.
    Earliest,
    /// After the event with this id.
    AfterId(Uuid),
}

fn export_from(text: &str) -> Result<ExportFrom, String> {
    if text == "earliest" {
        return Ok(ExportFrom::Earliest);
    }
    let id = text.strip_prefix("afterId:").unwrap_or(text);
    id.parse().map(ExportFrom::AfterId).map_err(|_| "expected earliest or the id of an event".to_owned())
}

pub(super) const IMPORT_HELP: &str = "\
Lines have the format of `prombus export`. Ids are kept, and an event that the topic already has is not added again. So \
after an interruption, run the same command again. A line without an id gets a new id in each run: continue such an \
import with --from-line.

A line that is not an event ends the import, after all lines before it are on the server's disk; --skip-bad skips such \
lines. At a rate limit of the server, the import waits. If the connection is lost, it reconnects.

Exit code: 0 all lines were imported; 1 some were not.

Examples:
  prombus import orders.ndjson
  prombus import orders.copy orders.ndjson           all events into the topic orders.copy
  zcat may.gz | prombus import -
  zcat may.gz | prombus import orders.copy -
  prombus import --payloads orders.new payloads.ndjson";

/// Arguments of `import`.
#[derive(Debug, ClapArgs)]
pub struct ImportArgs {
    /// The file, or - for standard input; a TOPIC before it replaces the topics in the lines
    #[arg(value_names = ["TOPIC", "FILE"], num_args = 0..=2)]
    pub places: Vec<String>,
    /// Each line is only a payload; needs a TOPIC
    #[arg(long)]
    pub payloads: bool,
    /// Report lines that are not events, and continue
    #[arg(long)]
    pub skip_bad: bool,
    /// Start with this line; the first line is 1
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub from_line: u64,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const REPLAY_HELP: &str = "\
Copies keep payload, key, headers and tags; caused_by contains the id of the original event. The id of a copy is \
derived from the original's id and the target topic, so a second replay adds nothing: after an interruption, run the \
same command again. The replay ends with the event that is newest when it starts.

Filters: key=…, tag=…, header.NAME=…; an event must match all of them.

Examples:
  prombus replay orders.new orders.check --dry-run
  prombus replay orders.new orders.check --filter key=customer-7 --filter header.source=shop
  prombus replay orders.new orders.check --from-ts 2026-05-01T00:00:00Z --rate 500
  prombus replay 'orders.*' check --from-ts -1h --dry-run";

/// Arguments of `replay`.
#[derive(Debug, ClapArgs)]
pub struct ReplayArgs {
    /// The topic to read, or a pattern: * matches one segment of a name, ** any number
    pub from: String,
    /// The topic to publish to
    pub to: String,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub times: TimeArgs,
    /// Print what would be published, and publish nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum events per second
    #[arg(long, value_name = "N", value_parser = positive)]
    pub rate: Option<f64>,
    /// Maximum number of events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Only the last N events; not for patterns
    #[arg(long, value_name = "N", value_parser = last_range(), conflicts_with = "from_ts")]
    pub last: Option<u64>,
    /// Give copies new ids; then a second replay adds all of them again
    #[arg(long)]
    pub new_ids: bool,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const DLQ_HELP: &str = "\
Examples:
  prombus dlq list
  prombus dlq show orders.new --limit 5
  prombus dlq redrive orders.new --group billing                 dry run
  prombus dlq redrive orders.new --group billing --yes
  prombus dlq discard orders.new --error-contains 'no such customer' --yes";

const REDRIVE_HELP: &str = "\
Publishes the events of open dead letters to their topic again, with payload, key, headers and tags. caused_by contains \
the id of the original event, and the header x-redrives counts how often the event was redriven. Only the group that gave \
an event up receives it, which needs a token with the scope admin; with --all-groups, every group of the topic receives it. \
Dead letters of older versions do not name the subscription of their group: they need --subscription or --all-groups.

Without --yes nothing is published. Redriven dead letters stay in their topic, but are no longer open. The id of a new event \
is derived from the dead letter's id, so a dead letter is redriven only once: after an interruption, run the same command \
again. If a redriven event fails again, it makes a new dead letter. An event that was already redriven --max-redrives times \
is skipped.

An event that the server refuses is skipped and reported.

Exit code: 0 all selected events were published; 1 some were not, e.g. because their group does not exist any more.

Filters: key=…, tag=…, header.NAME=… of the original event; it must match all of them.

Examples:
  prombus dlq redrive orders.new --error-contains timeout
  prombus dlq redrive orders.new --error-contains timeout --rate 20 --yes
  prombus dlq redrive orders.new --all-groups --yes";

const DISCARD_HELP: &str = "\
Marks open dead letters as discarded. They stay in their topic until its retention removes them, but are no longer open and \
are not redriven. Without IDs and selection, all of them are marked, and so are events of the topic that are not dead \
letters. This cannot be undone. Without --yes nothing is marked. Needs a token with the scope admin.

Filters: key=…, tag=…, header.NAME=… of the original event; it must match all of them.

Examples:
  prombus dlq discard orders.new --error-contains 'no such customer' --yes
  prombus dlq discard orders.new 0196f1d0-1c2a-7b3c-8d4e-5f6071829304 --yes";

/// Subcommands of `dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List the topics that have dead letters
    List(DlqListArgs),
    /// Show the newest dead letters of a topic
    Show(DlqShowArgs),
    /// Publish dead-lettered events again, to the group that gave them up
    #[command(after_help = REDRIVE_HELP)]
    Redrive(RedriveArgs),
    /// Mark dead letters as discarded
    #[command(after_help = DISCARD_HELP)]
    Discard(DiscardArgs),
}

/// Arguments of `dlq list`.
#[derive(Debug, ClapArgs)]
pub struct DlqListArgs {
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `dlq show`.
#[derive(Debug, ClapArgs)]
pub struct DlqShowArgs {
    /// The topic, with or without the prefix dlq.
    #[arg(value_parser = name::topic)]
    pub topic: String,
    /// Maximum number of dead letters
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Only dead letters of this group
    #[arg(long)]
    pub group: Option<String>,
    /// Also redriven and discarded dead letters
    #[arg(long)]
    pub all: bool,
    /// Print complete dead letters as JSON, one per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Selects dead letters of a topic.
#[derive(Debug, ClapArgs)]
pub struct LetterSelection {
    /// Only dead letters of this group
    #[arg(long)]
    pub group: Option<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Only dead letters whose error contains this text
    #[arg(long, value_name = "TEXT")]
    pub error_contains: Option<String>,
}

/// Arguments of `dlq discard`.
#[derive(Debug, ClapArgs)]
pub struct DiscardArgs {
    /// The topic, with or without the prefix dlq.
    #[arg(value_parser = name::topic)]
    pub topic: String,
    /// Only the events with these ids: those of dead letters, as `dlq show` prints them, or of other events of the topic
    #[arg(value_name = "ID")]
    pub ids: Vec<Uuid>,
    #[command(flatten)]
    pub selection: LetterSelection,
    /// Mark the dead letters
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `dlq redrive`.
#[derive(Debug, ClapArgs)]
pub struct RedriveArgs {
    /// The topic, with or without the prefix dlq.
    #[arg(value_parser = name::topic)]
    pub topic: String,
    #[command(flatten)]
    pub selection: LetterSelection,
    /// Publish to every group of the topic, not only to the group that gave the event up
    #[arg(long)]
    pub all_groups: bool,
    /// The topic or pattern of the group, for dead letters of older versions, which do not name it
    #[arg(long, value_name = "TOPIC|PATTERN", value_parser = name::pattern, conflicts_with = "all_groups")]
    pub subscription: Option<String>,
    /// Dry run (the default unless --yes is given)
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Publish the events
    #[arg(long)]
    pub yes: bool,
    /// Maximum events per second
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive)]
    pub rate: f64,
    /// Maximum number of new events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Skip events that were already redriven this many times
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_redrives: u32,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
