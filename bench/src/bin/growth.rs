//! The program `prombus-growth`: parses arguments, runs the measurements, writes result files. `bench/growth` builds and runs it.

use anyhow::Context;
use clap::Parser;
use prombus_compare::data_folder::{Data, stop_on_signals};
use prombus_compare::growth::dimension::{Dimension, Limits};
use prombus_compare::growth::measure::Runner;
use prombus_compare::growth::results::{Growth, Measured};
use prombus_compare::growth::{backlog, page, picture};
use prombus_compare::machine::{Machine, date_and_revision};
use prombus_compare::peer::PrombusPeer;
use prombus_compare::progress::{say, write_file};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures how the cost of prombus grows with topics, groups, connections, payload bytes and stored events.
///
/// Starts one server at a time on loopback, with its data on a disk, and writes raw results, tables and a chart. Results of
/// dimensions that are not named by --only are kept if they are from this machine.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Dimensions: topics, groups, connections, payloads, backlog.\nExit code: 0 if every run succeeded, 1 if a \
run lost, duplicated or reordered messages or a server failed, 2 if nothing could be measured."
)]
struct Args {
    /// Measure only these dimensions
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Number of runs per step; the results are medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    runs: u8,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Events of the largest backlog; 50 million need 18 GB of disk
    #[arg(long, default_value_t = 50_000_000, value_name = "EVENTS")]
    backlog: u64,
    /// Measure only the empty and the largest backlog
    #[arg(long)]
    largest_only: bool,
    /// Skip larger steps of topics, groups, connections and payloads
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_name = "SIZE")]
    at_most: u64,
    /// The folder for results
    #[arg(long, default_value = "bench/results", value_name = "DIR")]
    out: PathBuf,
    /// The prombus binary [default: in the folder of this program]
    #[arg(long, value_name = "PATH")]
    prombus: Option<PathBuf>,
    /// The folder for the server's data, on a disk; the data is deleted [default: in the build folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const RAW: &str = "growth.json";

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.05..=600.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.05 to 600".into()) }
}

fn main() -> ExitCode {
    match grow(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("prombus-growth: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Measures all dimensions and writes the results. Returns whether every run was clean.
fn grow(args: &Args) -> anyhow::Result<bool> {
    let dimensions = Dimension::named(&args.only)?;
    let limits = Limits { at_most: args.at_most, backlog: args.backlog, is_largest_only: args.largest_only };
    let program = std::env::current_exe()?;
    let program_folder = program.parent().context("a program is in a folder")?;
    let prombus = args.prombus.clone().unwrap_or_else(|| program_folder.join("prombus"));
    let data =
        Data::new(args.data.as_deref().unwrap_or_else(|| program_folder.parent().unwrap_or(program_folder)))?;
    stop_on_signals(&data)?;
    let runner = Runner {
        peer: PrombusPeer::new(&prombus)?,
        folder: data.folder().join("server"),
        runs: args.runs,
        time: Duration::from_secs_f64(args.seconds),
    };
    if dimensions.contains(&Dimension::Backlog) {
        backlog::check_room(&runner, &Dimension::Backlog.points(limits))?;
    }
    raise_descriptor_limit()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;

    let (date, revision) = date_and_revision()?;
    let machine = Machine::detect(data.folder())?;
    let mut growth = earlier(&args.out, &machine).unwrap_or_default();
    growth.machine = machine;
    for dimension in dimensions {
        let points = dimension.points(limits);
        let rows = match dimension {
            Dimension::Backlog => backlog::measure(&runner, &points),
            _ => runner.measure(dimension, &points),
        };
        growth.put(Measured {
            name: dimension.name().into(),
            date: date.clone(),
            revision: revision.clone(),
            runs: args.runs,
            seconds: args.seconds,
            rows,
        });
        // Written after each dimension: the backlog takes long, and an interruption must not lose the earlier results.
        write_file(&args.out, RAW, &(serde_json::to_string(&growth)? + "\n"))?;
    }
    write_file(&args.out, "growth.md", &page::page(&growth, RAW))?;
    write_file(&args.out, "growth.svg", &picture::picture(&growth))?;
    if !growth.is_clean() {
        say("NOT CLEAN: a run failed, or lost, duplicated or reordered messages; see the tables");
    }
    Ok(growth.is_clean())
}

/// The earlier results, if they are from this machine.
fn earlier(out: &Path, machine: &Machine) -> Option<Growth> {
    let growth: Growth = serde_json::from_slice(&std::fs::read(out.join(RAW)).ok()?).ok()?;
    (growth.machine.cpu == machine.cpu && growth.machine.cores == machine.cores).then_some(growth)
}

/// Raises this process's limit of open files to the hard limit.
fn raise_descriptor_limit() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")
}
