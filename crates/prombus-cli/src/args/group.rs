//! Arguments of `group`.

use super::filter::FilterArgs;
use super::json::JsonArgs;
use super::name;
use super::remote::ServerArgs;
use crate::time;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use prombus_client::{Start, Uuid};

pub(super) const GROUP_HELP: &str = "\
A group is named by its subscription (a topic or a pattern) and its name. Reading needs a token that may join the group; \
changes need the scope admin.

Examples:
  prombus group list
  prombus group show orders.new billing
  prombus group create orders.new audit --from earliest
  prombus group seek orders.new billing --to -1h                 show what would happen, then ask
  prombus group pause orders.new billing
  prombus group settle orders.new billing 0199a1c2-7d40-7000-8000-000000000001 release";

const CREATE_HELP: &str = "\
Creates a group without members, so that it keeps the events from now on. If the group exists, nothing changes. The maximum \
number of attempts and the lease time are not settings of a group: each member chooses them when it joins, and `prombus topic \
set TOPIC max_attempts=N` sets the default of a topic.

Examples:
  prombus group create orders.new billing
  prombus group create 'orders.*' audit --from earliest
  prombus group create orders.new eu --filter header.region=eu --filter tag=paid
  prombus group create orders.new preview --expire-ms 3600000    deleted after an hour without members";

const SEEK_HELP: &str = "\
Moves a group to another position: events after it are delivered again, unsettled events before it are skipped, and all \
leases become void. The command first shows what would happen. It asks before it moves the group; if standard input is not a \
terminal, it needs --yes.

Examples:
  prombus group seek orders.new billing --to earliest --dry-run
  prombus group seek orders.new billing --to -90m
  prombus group seek orders.new billing --to 2026-05-01T12:00:00Z --yes
  prombus group seek orders.new billing --to 0199a1c2-7d40-7000-8000-000000000001 --yes";

const SETTLE_HELP: &str = "\
Applies a verdict to an event on behalf of the member that holds it:

  ack       the event is done
  nack      the attempt failed: the event is redelivered after --delay-ms, or after a backoff
  dead      the event becomes a dead letter at once
  release   the lease ends at once, and the attempt does not count
  extend    the lease runs for another --extend-ms

Exit code: 0 the verdict was applied; 1 it was not, because no member holds the event.

Examples:
  prombus group settle orders.new billing 0199a1c2-7d40-7000-8000-000000000001 ack
  prombus group settle orders.new billing 0199a1c2-7d40-7000-8000-000000000001 dead --reason 'bad address'
  prombus group settle orders.new billing 0199a1c2-7d40-7000-8000-000000000001 extend --extend-ms 60000";

/// Subcommands of `group`.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List groups with their members, lag and oldest unsettled event
    List {
        /// Only groups with exactly this subscription
        #[arg(long, value_name = "TOPIC", value_parser = name::pattern)]
        topic: Option<String>,
        /// Only groups whose subscription begins with this text
        #[arg(long, value_name = "TEXT", conflicts_with = "topic")]
        prefix: Option<String>,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one group with its members, topics and leases
    Show {
        #[command(flatten)]
        group: GroupName,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Create a group without members
    #[command(after_help = CREATE_HELP)]
    Create(GroupCreateArgs),
    /// Move a group to another position
    #[command(after_help = SEEK_HELP)]
    Seek(GroupSeekArgs),
    /// Pause a group: its members get no events until it is resumed
    Pause {
        #[command(flatten)]
        group: GroupName,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Resume a paused group
    Resume {
        #[command(flatten)]
        group: GroupName,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Delete a group; its members get an error
    Delete {
        #[command(flatten)]
        group: GroupName,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        json: JsonArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Ack, nack, give up, release or extend an event of a group
    #[command(after_help = SETTLE_HELP)]
    Settle(GroupSettleArgs),
}

/// The name of a group.
#[derive(Clone, Debug, ClapArgs)]
pub struct GroupName {
    /// The topic or pattern that the group is subscribed to
    #[arg(value_parser = name::pattern)]
    pub topic: String,
    /// The group
    #[arg(value_parser = name::group)]
    pub group: String,
}

/// Arguments of `group create`.
#[derive(Debug, ClapArgs)]
pub struct GroupCreateArgs {
    #[command(flatten)]
    pub group: GroupName,
    /// Where the group starts: latest, earliest, at a TIME, or after the event with this ID
    #[arg(long, value_name = "latest|earliest|TIME|ID", default_value = "latest", value_parser = place, allow_hyphen_values = true)]
    pub from: Start,
    /// Another topic or pattern that the group reads; may be given more than once
    #[arg(long = "and", value_name = "TOPIC", value_parser = name::pattern)]
    pub topics: Vec<String>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Delete the group after this time without members
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub expire_ms: Option<u64>,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `group seek`.
#[derive(Debug, ClapArgs)]
pub struct GroupSeekArgs {
    #[command(flatten)]
    pub group: GroupName,
    /// The new position: latest, earliest, at a TIME, or after the event with this ID
    #[arg(long, value_name = "latest|earliest|TIME|ID", value_parser = place, allow_hyphen_values = true)]
    pub to: Start,
    /// Show what would happen, and change nothing
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Arguments of `group settle`.
#[derive(Debug, ClapArgs)]
pub struct GroupSettleArgs {
    #[command(flatten)]
    pub group: GroupName,
    /// The id of the event
    pub id: Uuid,
    /// The verdict
    pub verdict: VerdictArg,
    /// Why: with nack and dead
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// With nack: the minimum time before the redelivery
    #[arg(long, value_name = "MS")]
    pub delay_ms: Option<u64>,
    /// With extend: how long the lease runs from now
    #[arg(long, value_name = "MS", required_if_eq("verdict", "extend"))]
    pub extend_ms: Option<u64>,
    #[command(flatten)]
    pub json: JsonArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// A verdict on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictArg {
    /// The event is done.
    Ack,
    /// The attempt failed.
    Nack,
    /// The event becomes a dead letter.
    Dead,
    /// The lease ends, and the attempt does not count.
    Release,
    /// The lease runs longer.
    Extend,
}

impl VerdictArg {
    /// The name on the command line and on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Dead => "dead",
            Self::Release => "release",
            Self::Extend => "extend",
        }
    }
}

/// Parses a position in a topic.
fn place(text: &str) -> Result<Start, String> {
    match text {
        "latest" => return Ok(Start::Latest),
        "earliest" => return Ok(Start::Earliest),
        _ => {}
    }
    if let Ok(id) = text.parse::<Uuid>() {
        return Ok(Start::AfterId(id));
    }
    time::parse(text).map(Start::Ts).map_err(|_| {
        "expected latest, earliest, the id of an event, or a time such as 2026-05-01T12:00:00Z or -90m"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_word_a_time_or_an_id() {
        assert_eq!(place("earliest"), Ok(Start::Earliest));
        assert_eq!(place("1970-01-01T00:00:05Z"), Ok(Start::Ts(5_000)));
        let id = "0199a1c2-7d40-7000-8000-000000000001";
        assert_eq!(place(id), Ok(Start::AfterId(id.parse().expect("an id"))));
        assert!(place("-1h").is_ok());
        for bad in ["", "newest", "0199a1c2", "2026-13-01"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
