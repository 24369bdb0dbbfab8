//! Arguments of commands that talk to a running server.

use super::filter::Condition;
use super::number::positive;
use crate::time;
use clap::{Args as ClapArgs, Subcommand};
use prombus_client::Uuid;
use std::path::PathBuf;

/// Which server.
#[derive(Clone, Debug, ClapArgs)]
pub struct ServerArgs {
    /// The server; ws://, wss:// and https:// do as well
    #[arg(long, value_name = "URL", env = "PROMBUS_URL", default_value = "http://127.0.0.1:8090")]
    pub url: String,
    /// The token for it; WS_TOKEN if neither is there
    #[arg(long, env = "PROMBUS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

/// Which events, by time.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct TimeArgs {
    /// Events of this time and later: milliseconds since 1970, 2026-05-01, 2026-05-01T12:00:00Z, or how long ago: -90m, -1d
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    pub from_ts: Option<i64>,
    /// Events of this time and earlier
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    pub to_ts: Option<i64>,
}

pub(super) const EXPORT_HELP: &str = "\
A line is a whole event: id, seq, ts, topic, payload, and key, headers, tags and so on where it has them. \
It ends at what is newest when it begins. Of a FILE that is not whole, --resume cuts off half a line and \
continues after the last whole one. For a pattern, events come in the order in which they were committed.

Filters: key=…, tag=…, header.NAME=…; of several all must hold.

Examples:
  prombus export orders.new > orders.ndjson
  prombus export orders.new -o orders.ndjson
  prombus export orders.new -o orders.ndjson --resume
  prombus export orders.new --from-ts 2026-05-01 --to-ts 2026-06-01 | gzip > may.gz
  prombus export 'orders.**' --from-ts -1d --filter key=customer-7
  prombus export orders.new --last 10                the last ten
  prombus export orders.new --last 10 --order desc   the newest first";

/// What `export` takes.
#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The topic, or a pattern: * is one part of a name, ** any number
    pub topic: String,
    /// Only events that match: key=…, tag=… or header.NAME=…; may be given more than once
    #[arg(long = "filter", value_name = "FILTER")]
    pub filters: Vec<Condition>,
    /// Only the last N events; for one topic
    #[arg(long, value_name = "N", value_parser = last_range(), conflicts_with_all = ["resume", "from", "from_ts"])]
    pub last: Option<u64>,
    /// asc, or desc for the newest first; for one topic
    #[arg(long, value_name = "asc|desc", default_value = "asc")]
    pub order: Order,
    /// Where to start: earliest, or the id of the event to start behind
    #[arg(long, value_name = "earliest|ID", default_value = "earliest", value_parser = export_from)]
    pub from: ExportFrom,
    #[command(flatten)]
    pub times: TimeArgs,
    /// Write to a new file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Go on behind the last whole line of the file
    #[arg(long, requires = "output")]
    pub resume: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Which events come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// The oldest.
    Asc,
    /// The newest.
    Desc,
}

fn last_range() -> clap::builder::RangedU64ValueParser {
    // What a page of the server has at most.
    clap::value_parser!(u64).range(1..=1_000_000)
}

/// Where an export starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFrom {
    /// At the first event that is kept.
    Earliest,
    /// Behind this one.
    AfterId(Uuid),
}

fn export_from(text: &str) -> Result<ExportFrom, String> {
    if text == "earliest" {
        return Ok(ExportFrom::Earliest);
    }
    let id = text.strip_prefix("afterId:").unwrap_or(text);
    id.parse().map(ExportFrom::AfterId).map_err(|_| "earliest, or the id of an event, is wanted".to_owned())
}

pub(super) const IMPORT_HELP: &str = "\
Lines are what `prombus export` writes. Ids are kept: what a topic has is not added again, so after an \
interruption simply run it again. Lines without an id get a new one each time: go on with --from-line there.

A line that is no event ends the import, when all lines before it are on the server's disk; --skip-bad \
leaves such lines out. Too fast for a rate limit of the server: it waits. Server gone: it connects again.

Exit code: 0 all lines are in, 1 not.

Examples:
  prombus import orders.ndjson
  prombus import orders.copy orders.ndjson           into another topic
  zcat may.gz | prombus import -
  zcat may.gz | prombus import orders.copy -
  prombus import --payloads orders.new payloads.ndjson";

/// What `import` takes.
#[derive(Debug, ClapArgs)]
pub struct ImportArgs {
    /// The file, or - for standard input; with a topic before it, all goes there, whatever the lines say
    #[arg(value_names = ["TOPIC", "FILE"], num_args = 0..=2)]
    pub places: Vec<String>,
    /// Each line is a payload and nothing else; needs a topic
    #[arg(long)]
    pub payloads: bool,
    /// Report lines that are no event, and go on
    #[arg(long)]
    pub skip_bad: bool,
    /// Begin with this line; the first is 1
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub from_line: u64,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const REPLAY_HELP: &str = "\
Copies keep payload, key, headers and tags, and name the event that they come from in caused_by. Their ids \
are made from its id and the topic, so a second replay adds nothing: after an interruption, run it again. \
It ends at what is newest when it begins.

Filters: key=…, tag=…, header.NAME=…; of several all must hold.

Examples:
  prombus replay orders.new orders.check --dry-run
  prombus replay orders.new orders.check --filter key=customer-7 --filter header.source=shop
  prombus replay orders.new orders.check --from-ts 2026-05-01T00:00:00Z --rate 500
  prombus replay 'orders.*' check --from-ts -1h --dry-run";

/// What `replay` takes.
#[derive(Debug, ClapArgs)]
pub struct ReplayArgs {
    /// The topic to read, or a pattern: * is one part of a name, ** any number
    pub from: String,
    /// The topic to publish to
    pub to: String,
    /// Only events that match: key=…, tag=… or header.NAME=…; may be given more than once
    #[arg(long = "filter", value_name = "FILTER")]
    pub filters: Vec<Condition>,
    #[command(flatten)]
    pub times: TimeArgs,
    /// Only say what would be published
    #[arg(long)]
    pub dry_run: bool,
    /// Events a second at most
    #[arg(long, value_name = "N", value_parser = positive)]
    pub rate: Option<f64>,
    /// Events at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Only the last N events; for one topic
    #[arg(long, value_name = "N", value_parser = last_range(), conflicts_with = "from_ts")]
    pub last: Option<u64>,
    /// New ids: a second replay adds everything again
    #[arg(long)]
    pub new_ids: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

pub(super) const DLQ_HELP: &str = "\
Examples:
  prombus dlq list
  prombus dlq show orders.new --limit 5
  prombus dlq redrive orders.new --group billing                 says what it would do
  prombus dlq redrive orders.new --group billing --yes";

const REDRIVE_HELP: &str = "\
Publishes the events that groups gave up to their topic again: payload, key, headers and tags, with the \
event in caused_by and the header x-redrives, which counts. Every group of the topic gets them.

Without --yes nothing is published. Ids are made from the letters' ids, so what was redriven before is not \
published again: after an interruption, run it again. Letters stay where they are. \
An event that came back --max-redrives times is left alone.

Filters: key=…, tag=…, header.NAME=… of the event; of several all must hold.

Examples:
  prombus dlq redrive orders.new --error-contains timeout
  prombus dlq redrive orders.new --error-contains timeout --rate 20 --yes";

/// What can be done with dead letters.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// The topics that have dead letters
    List(DlqListArgs),
    /// The newest letters of a topic
    Show(DlqShowArgs),
    /// Publish events again that groups gave up
    #[command(after_help = REDRIVE_HELP)]
    Redrive(RedriveArgs),
}

/// What `dlq list` takes.
#[derive(Debug, ClapArgs)]
pub struct DlqListArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What `dlq show` takes.
#[derive(Debug, ClapArgs)]
pub struct DlqShowArgs {
    /// The topic, with or without the dlq. before it
    pub topic: String,
    /// So many letters at most, the newest
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Only what this group gave up
    #[arg(long)]
    pub group: Option<String>,
    /// Print the letters whole, one a line, as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What `dlq redrive` takes.
#[derive(Debug, ClapArgs)]
pub struct RedriveArgs {
    /// The topic, with or without the dlq. before it
    pub topic: String,
    /// Only what this group gave up
    #[arg(long)]
    pub group: Option<String>,
    /// Only events that match: key=…, tag=… or header.NAME=…; may be given more than once
    #[arg(long = "filter", value_name = "FILTER")]
    pub filters: Vec<Condition>,
    /// Only letters whose error has this text in it
    #[arg(long, value_name = "TEXT")]
    pub error_contains: Option<String>,
    /// Only say what would be published; that is so without --yes, too
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Publish
    #[arg(long)]
    pub yes: bool,
    /// Events a second at most
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive)]
    pub rate: f64,
    /// New events at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Leave events alone that were redriven so often
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_redrives: u32,
    #[command(flatten)]
    pub server: ServerArgs,
}
