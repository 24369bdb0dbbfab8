//! Arguments of `bench`, and the loads that it can run.

use super::json::JsonArgs;
use super::number::{count, positive};
use super::server::ServerArgs;
use clap::builder::{PossibleValue, Resettable};
use clap::{Arg, Args as ClapArgs, ValueEnum};
use std::path::PathBuf;

pub(super) const BENCH_HELP: &str = "\
Without --url, each load gets its own server with a new data folder inside --data; both are removed
afterwards. Put --data on a real disk: on tmpfs an fsync costs nothing, so the numbers mean little.
Published messages are read back and compared: the columns \"lost\", \"doubled\" and
\"out of order\" must be 0.

Exit code: 0 every message arrived once and in order; 1 some did not, or the run failed.

Examples:
  prombus bench
  prombus bench publish --connections 4 --seconds 60
  prombus bench latency --rate 10000 --url ws://127.0.0.1:8090
  prombus bench publish publish-to-ack --in-process
  prombus bench fan-out --groups 100 --size 64 --json";

/// A workload to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Publish.
    Publish,
    /// Consume existing messages.
    Consume,
    /// Publish, deliver, ack.
    PublishToAck,
    /// Deliver each message to many groups.
    FanOut,
    /// Publish and deliver at a fixed rate.
    Latency,
    /// Publish to many topics.
    Topics,
    /// Publish over many connections.
    Connections,
}

impl Load {
    /// All loads, in the order of the result table.
    pub const ALL: [Self; 7] = [
        Self::Publish,
        Self::Consume,
        Self::PublishToAck,
        Self::FanOut,
        Self::Latency,
        Self::Topics,
        Self::Connections,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::PublishToAck => "publish-to-ack",
            Self::FanOut => "fan-out",
            Self::Latency => "latency",
            Self::Topics => "topics",
            Self::Connections => "connections",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Self::Publish => "publish as fast as the window allows",
            Self::Consume => "one group consumes and acks existing messages",
            Self::PublishToAck => "publish, deliver to one group, ack",
            Self::FanOut => "deliver each message to --groups groups",
            Self::Latency => {
                "publish --rate messages per second; latency counts from when each message is due"
            }
            Self::Topics => "publish to --topics topics in turn",
            Self::Connections => "publish over many connections; --window is divided among them",
        }
    }

    /// How many topics the load publishes to.
    pub fn topics(self, args: &BenchArgs) -> usize {
        if self == Self::Topics { args.topics } else { 1 }
    }

    /// How many connections publish.
    pub fn publishers(self, args: &BenchArgs) -> usize {
        let default = if self == Self::Connections { 1_000 } else { 1 };
        args.connections.map_or(default, usize::from)
    }

    /// How many groups get each message.
    pub fn groups(self, args: &BenchArgs) -> usize {
        match self {
            Self::PublishToAck | Self::Latency => 1,
            Self::FanOut => args.groups,
            _ => 0,
        }
    }
}

impl ValueEnum for Load {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.help()))
    }
}

/// Arguments of `bench`.
#[derive(Debug, ClapArgs)]
#[command(
    mut_arg("url", |url| only_as_flag(url).help("Use this running server, e.g. ws://127.0.0.1:8090")),
    mut_arg("context", |context| only_as_flag(context).help("Use the server of this context")),
    // TLS is not measured.
    mut_arg("ca_cert", |ca_cert| ca_cert.env(Resettable::Reset).hide(true))
)]
pub struct BenchArgs {
    /// The loads to run; all if none is named
    #[arg(value_name = "LOAD")]
    pub loads: Vec<Load>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Measure the library inside this process, without a server
    #[arg(long)]
    pub in_process: bool,
    /// Folder in which temporary data folders are created
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,
    /// How long each load publishes
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = positive)]
    pub seconds: f64,
    /// Publish this many messages in total, instead of publishing for --seconds
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Size of a payload, at least 37
    #[arg(long, value_name = "BYTES", default_value = "256", value_parser = size)]
    pub size: usize,
    /// Maximum unanswered publishes per connection, and maximum unacked deliveries per group (at most 100000)
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = count)]
    pub window: usize,
    /// Connections that publish [default: 1; for the load `connections`: 1000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: Option<u16>,
    /// Number of groups of the load `fan-out`
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = count)]
    pub groups: usize,
    /// Number of topics of the load `topics`
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = count)]
    pub topics: usize,
    /// Messages per second of the load `latency`
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = positive)]
    pub rate: f64,
    /// Let the client create the event ids, as SDKs do
    #[arg(long)]
    pub client_ids: bool,
    /// Do not read published messages back
    #[arg(long)]
    pub no_verify: bool,
    /// How many times to run all loads
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    #[command(flatten)]
    pub json: JsonArgs,
}

/// A variable or a context that is in use must not make a benchmark run against a server that others use.
fn only_as_flag(arg: Arg) -> Arg {
    arg.env(Resettable::Reset).conflicts_with("in_process")
}

impl BenchArgs {
    /// Whether a running server is measured.
    pub fn has_server(&self) -> bool {
        self.server.flags.url.is_some() || self.server.flags.context.is_some()
    }
}

fn size(text: &str) -> Result<usize, String> {
    const LEAST: usize = prombus_bench::stamp::MIN_PAYLOAD_BYTES;
    // The maximum of `max_payload_bytes`.
    const MOST: usize = 16 << 20;
    let number = text.parse::<usize>().ok().filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {LEAST} to {MOST}"))
}
