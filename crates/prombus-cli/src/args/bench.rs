//! Arguments of `bench`, and the loads by name.

use super::number::{count, positive};
use clap::builder::PossibleValue;
use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;

pub(super) const BENCH_HELP: &str = "\
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

/// A load: what is done while it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Publish.
    Publish,
    /// Consume what is there.
    Consume,
    /// Publish, deliver, ack.
    PublishToAck,
    /// Every message to many groups.
    FanOut,
    /// A fixed rate.
    Latency,
    /// Publish to many topics.
    Topics,
    /// Publish over many connections.
    Connections,
}

impl Load {
    /// All, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Publish,
        Self::Consume,
        Self::PublishToAck,
        Self::FanOut,
        Self::Latency,
        Self::Topics,
        Self::Connections,
    ];

    /// Its name.
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
            Self::Consume => "one group reads and acks what is there",
            Self::PublishToAck => "publish, deliver to one group, ack",
            Self::FanOut => "each message to --groups groups",
            Self::Latency => "--rate messages a second; a message's clock starts when it is due",
            Self::Topics => "publish to --topics topics in turn",
            Self::Connections => "publish over many connections that share the window",
        }
    }

    /// How many topics it has.
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

fn size(text: &str) -> Result<usize, String> {
    const LEAST: usize = prombus_bench::stamp::MIN_PAYLOAD_BYTES;
    // What `max_payload_bytes` can be at most.
    const MOST: usize = 16 << 20;
    let number = text.parse::<usize>().ok().filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from {LEAST} to {MOST} is wanted"))
}
