//! Measures a load: makes its plan, runs it, and reads the published messages back.

use super::report::Row;
use super::target::Target;
use crate::args::{BenchArgs, Load};
use crate::cmd::progress;
use indicatif::ProgressBar;
use prombus_bench::client::Progress;
use prombus_bench::ledger::{Balance, Ledger};
use prombus_bench::{Length, Measurement, Pace, Plan};
use std::time::Duration;

/// Messages to publish before the load `consume` starts.
const CONSUMED_MESSAGES: u64 = 1_000_000;
/// The beginning of a run, which is not measured.
const WARM_UP: Duration = Duration::from_millis(500);

const BAR: &str = "{msg:32} {bar:30} {prefix}";

fn plan(load: Load, args: &BenchArgs) -> Plan {
    let publishers = load.publishers(args);
    let length = match (args.messages, load) {
        (Some(messages), _) => Length::Messages(messages),
        (None, Load::Consume) => Length::Messages(CONSUMED_MESSAGES),
        (None, _) => Length::Time(Duration::from_secs_f64(args.seconds)),
    };
    Plan {
        publishers,
        window: if load == Load::Connections { (args.window / publishers).max(1) } else { args.window },
        payload_bytes: args.size,
        topics: load.topics(args),
        groups: load.groups(args),
        pace: if load == Load::Latency { Pace::Rate(args.rate) } else { Pace::Full },
        length,
        // A run of a fixed number of messages is measured from the first message.
        warm_up: if matches!(length, Length::Messages(_)) { Duration::ZERO } else { WARM_UP },
        ..Plan::default()
    }
}

/// A description of the load, with its numbers.
fn describe(load: Load, args: &BenchArgs, plan: &Plan) -> String {
    let connections = |count: usize| match count {
        1 => "1 connection".to_owned(),
        count => format!("{count} connections"),
    };
    let publishers = connections(plan.publishers);
    match load {
        Load::Publish => format!("publish, {publishers}"),
        Load::Consume => "consume, 1 group".to_owned(),
        Load::PublishToAck => format!("publish, deliver, ack, {publishers}"),
        Load::FanOut => format!("deliver to {} groups", plan.groups),
        Load::Latency => format!("{} messages/s, 1 group", args.rate),
        Load::Topics => format!("publish to {} topics", plan.topics),
        Load::Connections => format!("publish, {publishers}, {} in flight each", plan.window),
    }
}

/// Measures a load.
///
/// # Errors
/// When the server refuses a request or closes the connection.
pub fn measure(load: Load, args: &BenchArgs, target: &Target, run: u32) -> anyhow::Result<Row> {
    let plan = plan(load, args);
    let what = describe(load, args, &plan);
    let bar = progress::bar(1_000, BAR).with_message(what.clone());
    let mut ledger = Ledger::new(plan.publishers, plan.topics, plan.groups);
    let mut measurement = target.run(&plan, &mut ledger, &mut |progress| show(&bar, &plan, progress))?;
    if plan.groups == 0 && (load == Load::Consume || !args.no_verify) {
        bar.set_message(if load == Load::Consume { what.clone() } else { format!("{what}: reading back") });
        let reading = Plan { publishers: 0, groups: 1, warm_up: Duration::ZERO, ..plan.clone() };
        ledger.set_groups(1);
        let read = target.run(&reading, &mut ledger, &mut |progress| show(&bar, &reading, progress))?;
        if load == Load::Consume {
            measurement = Measurement { publish: measurement.publish, ..read };
        } else {
            // The balance comes from reading back, the measurements from publishing.
            measurement.balance = Balance { delivered: 0, ..read.balance };
        }
    }
    bar.finish_and_clear();
    let server_cpu_us = measurement.server_cpu_us();
    Ok(Row { load: load.name(), what, run, measurement, server_cpu_us })
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
