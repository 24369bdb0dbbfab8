//! The program `prombus-compare`: parses arguments, reports progress, writes result files. `bench/compare` builds and runs it.

use anyhow::Context;
use clap::Parser;
use prombus_bench::Plan;
use prombus_compare::data_folder::{Data, stop_on_signals};
use prombus_compare::load::{Alone, Load, Times};
use prombus_compare::machine::{Machine, check_free, date_and_revision};
use prombus_compare::page;
use prombus_compare::peer::{self, Tuning};
use prombus_compare::progress::{minutes, say, write_file};
use prombus_compare::results::{Results, Sample};
use prombus_compare::schedule::{estimate, loads_named, peers_named, perform, schedule};
use prombus_compare::wire::{Delivery, QueueType};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the same loads on prombus and on its peers, with the same client loop.
///
/// Starts one server at a time on loopback, with its data on the same disk, and writes raw results, tables and a chart.
/// Peers are found on the PATH, or with the variables REDIS_SERVER, NATS_SERVER and RABBITMQ_SERVER.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Loads: publish, publish-4, round-trip, fan-out, steady; for prombus alone client-ids, \
client-ids-4, sustained, sustained-4.\nExit code: 0 if every run succeeded (a missed goal is not an error), 1 if a run lost, \
duplicated or reordered messages or a server failed, 2 if nothing could be measured."
)]
struct Args {
    /// Number of runs per load and server; medians are compared
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Length of the sustained runs, on prombus alone, in seconds; 0 for none
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=3600))]
    sustained: u64,
    /// Run only these loads
    #[arg(long, value_delimiter = ',', value_name = "LOADS")]
    only: Vec<String>,
    /// Compare only with these servers: redis, nats, rabbitmq, or one setting such as redis-always; `none` for prombus alone
    #[arg(long, value_delimiter = ',', value_name = "SERVERS")]
    peers: Vec<String>,
    /// The folder for results
    #[arg(long, default_value = "bench/results", value_name = "DIR")]
    out: PathBuf,
    /// The prombus binary [default: in the folder of this program]
    #[arg(long, value_name = "PATH")]
    prombus: Option<PathBuf>,
    /// The folder for the servers' data, on a disk; the data is deleted [default: in the build folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How NATS delivers; the difference was within the noise
    #[arg(long, default_value = "push", value_name = "HOW")]
    nats_delivery: Delivery,
    /// Number of I/O threads of Redis; more than 1 is slower on few cores
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    redis_io_threads: u8,
    /// The type of RabbitMQ's queues; publishing is faster with quorum queues
    #[arg(long, default_value = "quorum", value_name = "TYPE")]
    rabbitmq_queue: QueueType,
}

/// The maximum number of bytes per second that prombus writes to its log, to estimate the disk space of a sustained run.
const BYTES_PER_SECOND: u64 = 400_000_000;

fn main() -> ExitCode {
    match compare(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("prombus-compare: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Runs all loads and writes the results. Returns whether every run was clean.
fn compare(args: &Args) -> anyhow::Result<bool> {
    let times =
        Times { run: Duration::from_secs(args.seconds), sustained: Duration::from_secs(args.sustained) };
    let mut loads = loads_named(&args.only)?;
    loads.retain(|load| args.sustained > 0 || load.alone != Some(Alone::Sustained));
    let program = std::env::current_exe()?;
    let program_folder = program.parent().context("a program is in a folder")?;
    let prombus = args.prombus.clone().unwrap_or_else(|| program_folder.join("prombus"));
    let tuning = Tuning {
        nats_delivery: args.nats_delivery,
        redis_io_threads: args.redis_io_threads,
        rabbitmq_queue: args.rabbitmq_queue,
    };
    let found = peer::find(&prombus, tuning)?;
    let peers = peers_named(found.peers, &args.peers)?;

    let data =
        Data::new(args.data.as_deref().unwrap_or_else(|| program_folder.parent().unwrap_or(program_folder)))?;
    check_room(data.folder(), &loads, times)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    stop_on_signals(&data)?;

    let (date, revision) = date_and_revision()?;
    let plan = Plan::default();
    let mut results = Results {
        date,
        revision,
        machine: Machine::detect(data.folder())?,
        payload_bytes: plan.payload_bytes,
        window: plan.window,
        seconds: args.seconds,
        sustained_seconds: args.sustained,
        servers: peers.iter().map(|peer| peer.description().clone()).collect(),
        not_compared: found.missing,
        samples: Vec::new(),
    };
    for server in &results.servers {
        say(&format!("{} {}: {}", server.name, server.version, server.promise));
    }
    for missing in &results.not_compared {
        say(&format!("NOTE: {missing}"));
    }
    let steps = schedule(&loads, peers.len(), usize::from(args.runs));
    say(&format!("{} runs, about {}", steps.len(), minutes(estimate(&steps, &peers, times))));
    for (at, step) in steps.iter().enumerate() {
        let peer = &peers[step.server];
        let sample = perform(step, peer, times, &data.folder().join("server"));
        let left = minutes(estimate(&steps[at + 1..], &peers, times));
        say(&format!("[{}/{}] {}; {left} left", at + 1, steps.len(), line(&sample)));
        results.samples.push(sample);
    }
    write_results(&results, &args.out)?;
    let is_clean = results.is_clean();
    if !is_clean {
        say("NOT CLEAN: a run failed, or lost, duplicated or reordered messages; see the tables");
    }
    Ok(is_clean)
}

/// The progress line of a run.
fn line(sample: &Sample) -> String {
    let Sample { load, server, run, .. } = sample;
    let Some(measurement) = &sample.measurement else {
        return format!("run {run} {load} {server}: FAILED: {}", sample.error.as_deref().unwrap_or_default());
    };
    let warning = if measurement.balance.is_clean() { "" } else { ", NOT CLEAN" };
    format!(
        "run {run} {load} {server}: {}/s, client {:.2} cores, server {:.2}{warning}",
        page::number(measurement.per_second),
        measurement.client_cores(),
        measurement.server_cores().unwrap_or(0.0),
    )
}

fn write_results(results: &Results, out: &Path) -> anyhow::Result<()> {
    let raw = format!("{}-{}.json", results.date, results.machine.slug());
    write_file(out, &raw, &(serde_json::to_string_pretty(results)? + "\n"))?;
    write_file(out, "latest.md", &page::page(results, &raw))?;
    write_file(out, "latest.svg", &page::picture(results))
}

fn check_room(folder: &Path, loads: &[Load], times: Times) -> anyhow::Result<()> {
    let longest = loads.iter().map(|load| load.length(times).as_secs()).max().unwrap_or(0);
    let advice = "use another disk with --data, or shorter runs with --sustained";
    check_free(folder, (longest + 1) * BYTES_PER_SECOND, &format!("runs of {longest} s"), advice)
}
