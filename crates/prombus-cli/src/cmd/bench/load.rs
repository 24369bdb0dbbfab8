//! The loads: what each does, and how it is measured.

use super::Row;
use super::place::Place;
use crate::args::BenchArgs;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use prombus_bench::client::Progress;
use prombus_bench::ledger::{Balance, Ledger};
use prombus_bench::{Length, Measurement, Pace, Plan};
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// What is done.
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

/// Messages that are there for a group to consume.
const CONSUMED_MESSAGES: u64 = 1_000_000;
/// What is at the begin and does not count.
const WARM_UP: Duration = Duration::from_millis(500);

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

    fn groups(self, args: &BenchArgs) -> usize {
        match self {
            Self::PublishToAck | Self::Latency => 1,
            Self::FanOut => args.groups,
            _ => 0,
        }
    }

    fn plan(self, args: &BenchArgs) -> Plan {
        let publishers = self.publishers(args);
        let length = match (args.messages, self) {
            (Some(messages), _) => Length::Messages(messages),
            (None, Self::Consume) => Length::Messages(CONSUMED_MESSAGES),
            (None, _) => Length::Time(Duration::from_secs_f64(args.seconds)),
        };
        Plan {
            publishers,
            window: if self == Self::Connections { (args.window / publishers).max(1) } else { args.window },
            payload_bytes: args.size,
            topics: self.topics(args),
            groups: self.groups(args),
            pace: if self == Self::Latency { Pace::Rate(args.rate) } else { Pace::Full },
            length,
            // A count of messages is counted from the first on.
            warm_up: if matches!(length, Length::Messages(_)) { Duration::ZERO } else { WARM_UP },
            ..Plan::default()
        }
    }

    /// What it does, with its numbers.
    fn what(self, args: &BenchArgs, plan: &Plan) -> String {
        let connections = |count: usize| match count {
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        };
        let publishers = connections(plan.publishers);
        match self {
            Self::Publish => format!("publish, {publishers}"),
            Self::Consume => "consume what is there, 1 group".to_owned(),
            Self::PublishToAck => format!("publish, deliver, ack, {publishers}"),
            Self::FanOut => format!("deliver to {} groups", plan.groups),
            Self::Latency => format!("{} messages/s, 1 group", args.rate),
            Self::Topics => format!("publish to {} topics", plan.topics),
            Self::Connections => format!("publish, {publishers}, {} in flight each", plan.window),
        }
    }

    /// Measures it.
    pub fn measure(self, args: &BenchArgs, place: &Place, run: u32) -> anyhow::Result<Row> {
        let plan = self.plan(args);
        let what = self.what(args, &plan);
        let bar = progress_bar(&what);
        let mut ledger = Ledger::new(plan.publishers, plan.topics, plan.groups);
        let mut measurement = place.run(&plan, &mut ledger, &mut |progress| show(&bar, &plan, progress))?;
        if plan.groups == 0 && (self == Self::Consume || !args.no_verify) {
            bar.set_message(if self == Self::Consume {
                what.clone()
            } else {
                format!("{what}: reading back")
            });
            let reading = Plan { publishers: 0, groups: 1, warm_up: Duration::ZERO, ..plan.clone() };
            ledger.set_groups(1);
            let read = place.run(&reading, &mut ledger, &mut |progress| show(&bar, &reading, progress))?;
            if self == Self::Consume {
                measurement = Measurement { publish: measurement.publish, ..read };
            } else {
                // The books count what was read back; the figures are those of the publishing.
                measurement.balance = Balance { delivered: 0, ..read.balance };
            }
        }
        bar.finish_and_clear();
        let server_cpu_us = measurement.server_cpu_us();
        Ok(Row { load: self.name(), what, run, measurement, server_cpu_us })
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

fn progress_bar(what: &str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg:32} {bar:30} {prefix}");
    let bar = ProgressBar::new(1_000).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(what.to_owned())
}

fn show(bar: &ProgressBar, plan: &Plan, progress: Progress) {
    let seconds = progress.elapsed.as_secs_f64();
    let done = match (plan.publishers, plan.length) {
        (0, Length::Messages(messages)) => progress.delivered as f64 / messages.max(1) as f64,
        (0, Length::Time(_)) => 0.0,
        (_, Length::Messages(messages)) => progress.answered as f64 / messages.max(1) as f64,
        (_, Length::Time(time)) => seconds / (time + plan.warm_up).as_secs_f64(),
    };
    bar.set_position((done.min(1.0) * 1_000.0) as u64);
    let count = if plan.groups > 0 { progress.delivered } else { progress.answered };
    bar.set_prefix(format!("{:.0} k/s", count as f64 / seconds.max(0.001) / 1_000.0));
}
