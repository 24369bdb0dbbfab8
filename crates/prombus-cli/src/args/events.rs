//! Arguments of `pub`, `sub` and `tail`.

use super::duration::duration;
use super::filter::FilterArgs;
use super::name;
use super::number::positive;
use super::remote::ServerArgs;
use crate::time;
use clap::Args as ClapArgs;
use prombus_client::{Start, Uuid};
use std::time::Duration;

pub(super) const PUB_HELP: &str = "\
The payload is JSON. With --text it is any text, which is published as a JSON string. With - instead of a payload, or if \
standard input is a pipe or a file, each line of standard input is one payload; empty lines are skipped. A line that is \
not JSON ends the command, after all lines before it are on the server's disk.

At a rate limit of the server, the command waits. If the connection is lost, it reconnects and sends events without an \
answer again under the same id, so that each is stored once.

Exit codes: 0 all events are on the server's disk; 1 some are not; 2 wrong arguments; 130 or 143 a signal ended the \
command.

Examples:
  prombus pub orders.new '{\"total\": 12}'
  prombus pub orders.new '{\"total\": 12}' --key customer-7 --header source=shop
  prombus pub notes --text 'hello world'
  prombus pub orders.new < payloads.ndjson
  journalctl -f -o json | prombus pub journal
  seq 1000 | prombus pub numbers --rate 100";

/// Arguments of `pub`.
#[derive(Debug, ClapArgs)]
pub struct PubArgs {
    /// The topic to publish to
    pub topic: String,
    /// The payload as JSON; - reads one payload per line from standard input
    #[arg(allow_negative_numbers = true)]
    pub payload: Option<String>,
    /// The payload, or each line, is text: publish it as a JSON string
    #[arg(long)]
    pub text: bool,
    /// The entity that the event is about
    #[arg(long)]
    pub key: Option<String>,
    /// A header; may be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// A tag; may be given more than once
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// The event's id: a second publish with the same id adds nothing; only for a single event
    #[arg(long, value_name = "UUID")]
    pub id: Option<Uuid>,
    /// Maximum events per second
    #[arg(long, value_name = "N", value_parser = positive)]
    pub rate: Option<f64>,
    /// Print the answer to each event as a JSON line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

pub(super) const SUB_HELP: &str = "\
Joins the consumer group, which is created if it does not exist. Each event goes to one member of the group. Without \
--exec, events are printed as `prombus tail` prints them, and each is acked when it is written.

With --exec, `sh -c CMD` runs for each event. Its standard input is the payload, as JSON with a line break; its standard \
output is that of prombus. In its environment are EVENT_ID, EVENT_TOPIC, EVENT_SEQ, EVENT_KEY (not set if the event has \
no key), EVENT_ATTEMPT (1 for the first) and EVENT_HEADERS (a JSON object). The exit code decides:
  0       the event is acked
  65      the event becomes a dead letter at once
  other   the event is nacked and redelivered later; it becomes a dead letter after the last attempt
The end of the command's standard error is the reason, which dead letters contain. The lease is extended while the \
command runs. If the connection is lost, the command runs on, and prombus reconnects.

The first SIGINT (Ctrl-C), SIGTERM or SIGHUP takes no more events and waits for running commands; the second kills them, and \
their events go to other members.

Filters: key=…, tag=…, header.NAME=…; an event must match all of them. All members of a group must have the same filter.

Exit codes: 0 --limit was reached; 1 failure; 2 wrong arguments; 129, 130 or 143 a signal ended the command.

Examples:
  prombus sub orders.new --group debug
  prombus sub 'orders.**' --group billing --from earliest --exec ./charge.sh --concurrency 8
  prombus sub orders.new --group mail --exec 'to=$(jq -er .email) || exit 65; send-mail \"$to\"' --timeout 1m
  prombus sub orders.new --group once --from earliest --limit 10 --json";

/// Arguments of `sub`.
#[derive(Debug, ClapArgs)]
pub struct SubArgs {
    /// The topic, or a pattern: * matches one segment of a name, ** any number
    pub topic: String,
    /// The consumer group
    #[arg(long, short, value_parser = name::group)]
    pub group: String,
    /// Run this shell command for each event
    #[arg(long, value_name = "CMD", value_parser = shell_command)]
    pub exec: Option<String>,
    /// How many commands run at the same time
    #[arg(long, short, value_name = "N", default_value = "1", requires = "exec", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub concurrency: u32,
    /// Stop a command that runs longer, and nack its event
    #[arg(long, value_name = "DURATION", requires = "exec", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Where a new group starts: earliest, latest, after the event with this ID, or at a time; no effect on a group that exists
    #[arg(long, value_name = "earliest|latest|ID|TIME", default_value = "latest", value_parser = start, allow_hyphen_values = true)]
    pub from: Start,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// The number of attempts after which an event becomes a dead letter [default: the topic's max_attempts, otherwise 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_attempts: Option<u32>,
    /// The duration of a lease [default: 30s]; prombus extends it while it works on the event
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ack_timeout: Option<Duration>,
    /// Stop after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// The member's name in lists, metrics and logs
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// A shell command. `sh -c ''` would exit with 0 and ack every event, for example if a variable in the arguments is unset.
fn shell_command(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("the command is empty, so every event would be acked".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn start(text: &str) -> Result<Start, String> {
    match text {
        "earliest" => return Ok(Start::Earliest),
        "latest" => return Ok(Start::Latest),
        _ => {}
    }
    if let Ok(id) = text.strip_prefix("afterId:").unwrap_or(text).parse() {
        return Ok(Start::AfterId(id));
    }
    time::parse_since(text).map(Start::Ts).map_err(|_| {
        "expected earliest, latest, the id of an event, or a time such as 2026-05-01T12:00:00Z or 1d"
            .to_owned()
    })
}

pub(super) const TAIL_HELP: &str = "\
Prints the newest events, oldest first, without a group: nothing is acked, and consumers do not notice. With --follow it \
then prints new events until Ctrl-C. It reconnects if the connection is lost, and misses and repeats nothing.

On a terminal, a line has the time (UTC), topic, seq, key and payload of an event. Otherwise, and with --json, it is the \
complete event as JSON. --color always prints lines for people even into a pipe. The variable NO_COLOR turns colours \
off.

The newest events of a pattern are ordered by time, and by seq within a topic.

Filters: key=…, tag=…, header.NAME=…; an event must match all of them.

Examples:
  prombus tail orders.new
  prombus tail 'orders.**' -f
  prombus tail orders.new --since 1d --filter key=customer-7
  prombus tail orders.new -n 0 -f | jq .payload.total
  prombus tail 'dlq.**' -n 10";

/// Arguments of `tail`.
#[derive(Debug, ClapArgs)]
pub struct TailArgs {
    /// The topic, or a pattern: * matches one segment of a name, ** any number
    pub topic: String,
    /// How many events [default: 50; with --since: all]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub lines: Option<u64>,
    /// Only events since this time: 90m, 1d, 2026-05-01, 2026-05-01T12:00:00Z, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = time::parse_since, allow_hyphen_values = true)]
    pub since: Option<i64>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Then print new events as they are published
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub format: FormatArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// How events are printed.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct FormatArgs {
    /// Print each event as one JSON line; the default if the output is not a terminal
    #[arg(long)]
    pub json: bool,
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_starts_at_a_named_place_an_event_or_a_time() {
        let id = "0196f1d0-0000-7000-8000-000000000001";
        assert_eq!(start("earliest"), Ok(Start::Earliest));
        assert_eq!(start(id), Ok(Start::AfterId(id.parse().unwrap())));
        assert_eq!(start(&format!("afterId:{id}")), start(id));
        assert_eq!(start("1970-01-02"), Ok(Start::Ts(86_400_000)));
        assert!(matches!(start("-1d"), Ok(Start::Ts(ts)) if ts > 1_600_000_000_000));
        assert!(start("soon").is_err());
    }
}
