//! Measures the speed of the library in one process, compared with the log alone.
//!
//! ```text
//! cargo bench -p prombus                                 # everything, three times; takes some minutes
//! cargo bench -p prombus -- --quick                      # once, short rounds
//! cargo bench -p prombus -- --only "ten groups"          # rows whose name contains this
//! PROMBUS_BENCH_DIR=/mnt/disk cargo bench -p prombus     # on another disk than that of the target folder
//! ```
//!
//! A round runs in a fresh folder that is removed afterwards. Bus and log take turns within a round, so that both see the
//! same disk. The table shows the median of the rounds.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the benchmark prints its progress and a table"
)]

mod consume;
mod load;
mod publish;

// Shared with the log's benchmark: the publisher for the log alone, folders, figures.
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/ids.rs"]
mod ids;
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/publisher.rs"]
mod publisher;
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/recorder.rs"]
mod recorder;
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/scratch.rs"]
mod scratch;
#[allow(dead_code)]
#[path = "../../../prombus-log/benches/log/table.rs"]
mod table;

use crate::machine::Machine;
use crate::scratch::Scratch;
use crate::table::{Table, grouped, percent};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Counts what every thread of a round allocates.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Any failure; a benchmark stops at the first one.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    pub events_per_second: f64,
    pub allocations_per_event: f64,
    /// The log alone, in the same round.
    pub log_events_per_second: Option<f64>,
    /// From publish to durable, or to delivery.
    pub latencies: recorder::Percentiles,
}

/// Measures a piece of work: events per second, allocations per event.
struct Stopwatch {
    started: Instant,
    region: Region<'static, System>,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { started: Instant::now(), region: Region::new(ALLOCATOR) }
    }

    pub fn stop(&self, events: u64, latencies: recorder::Percentiles) -> Round {
        let seconds = self.started.elapsed().as_secs_f64();
        let change = self.region.change();
        let allocations = change.allocations + change.reallocations;
        Round {
            events_per_second: events as f64 / seconds,
            allocations_per_event: allocations as f64 / events as f64,
            log_events_per_second: None,
            latencies,
        }
    }
}

/// How to run the benchmarks.
struct Plan {
    pub round: Duration,
    pub repetitions: usize,
    /// Events that exist before a group catches up.
    pub kept_events: u64,
    only: Option<String>,
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        // `cargo bench` passes `--bench`; without it (`cargo test --benches`) rounds only show that everything runs.
        let (round_ms, repetitions, kept_events) = if has("--quick") {
            (500, 1, 300_000)
        } else if has("--bench") {
            (2_000, 3, 2_000_000)
        } else {
            (50, 1, 20_000)
        };
        let mut plan = Self { round: Duration::from_millis(round_ms), repetitions, kept_events, only: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" | "--quick" => {}
                "--only" => plan.only = Some(value()?.clone()),
                "--repetitions" => {
                    let text = value()?;
                    let count = text.parse().ok().filter(|&count| count > 0);
                    plan.repetitions =
                        count.ok_or_else(|| format!("--repetitions {text}: not a number above zero"))?;
                }
                other => {
                    return Err(format!(
                        "unknown option {other}; options: --quick, --only TEXT, --repetitions N"
                    ));
                }
            }
        }
        Ok(plan)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

type Measure = Box<dyn Fn(&Plan, &Scratch) -> Result<Round, Failure>>;

fn rows() -> Vec<(String, Measure)> {
    let mut rows: Vec<(String, Measure)> = Vec::new();
    for in_flight in [1, 64, 1_024] {
        let name = format!("publish, durable, {} in flight", grouped(in_flight as f64));
        rows.push((name, Box::new(move |plan, scratch| publish::measure(plan, scratch, in_flight))));
    }
    rows.push((
        "publish, durable, 1,024 tasks with one event each".to_owned(),
        Box::new(|plan, scratch| publish::measure_tasks(plan, scratch, 1_024)),
    ));
    rows.push((
        "publish, deliver, ack, durable".to_owned(),
        Box::new(|plan, scratch| consume::measure_live(plan, Some(scratch), 1)),
    ));
    rows.push((
        "publish, deliver, ack, in memory".to_owned(),
        Box::new(|plan, _| consume::measure_live(plan, None, 1)),
    ));
    rows.push((
        "ten groups at once, durable (deliveries)".to_owned(),
        Box::new(|plan, scratch| consume::measure_live(plan, Some(scratch), 10)),
    ));
    rows.push((
        "ten groups at once, in memory (deliveries)".to_owned(),
        Box::new(|plan, _| consume::measure_live(plan, None, 10)),
    ));
    rows.push(("catch-up from earliest, with acks".to_owned(), Box::new(consume::measure_catch_up)));
    rows
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let plan = Plan::parse(&arguments)?;
    let scratch = Scratch::new()?;
    let machine = Machine::look(scratch.path());
    print!("{machine}");
    if machine.is_in_memory() {
        eprintln!("warning: {} is in memory; set PROMBUS_BENCH_DIR to a disk", scratch.path().display());
    }
    let mut rows = rows();
    rows.retain(|(name, _)| plan.wants(name));
    let mut rounds: Vec<Vec<Round>> = rows.iter().map(|_| Vec::new()).collect();
    for repetition in 1..=plan.repetitions {
        for ((name, measure), rounds) in rows.iter().zip(&mut rounds) {
            eprint!("[{repetition}/{}] {name} ... ", plan.repetitions);
            scratch.settle()?;
            let round = measure(&plan, &scratch)?;
            let log = round.log_events_per_second.map(|log| format!(", the log alone {}/s", grouped(log)));
            eprintln!("{}/s{}", grouped(round.events_per_second), log.unwrap_or_default());
            rounds.push(round);
        }
    }
    let mut table = Table::new(&["", "events/s", "of the log", "p50 µs", "p99 µs", "allocations/event"]);
    for ((name, _), rounds) in rows.iter().zip(&rounds) {
        let ratios = rounds
            .iter()
            .filter_map(|round| round.log_events_per_second.map(|log| round.events_per_second / log));
        let ratios: Vec<f64> = ratios.collect();
        table.add(vec![
            name.clone(),
            grouped(median(rounds.iter().map(|round| round.events_per_second))),
            if ratios.is_empty() { String::new() } else { percent(median(ratios.into_iter())) },
            grouped(median(rounds.iter().map(|round| round.latencies.p50.as_secs_f64() * 1e6))),
            grouped(median(rounds.iter().map(|round| round.latencies.p99.as_secs_f64() * 1e6))),
            format!("{:.3}", median(rounds.iter().map(|round| round.allocations_per_event))),
        ]);
    }
    print!("\n{table}");
    Ok(())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}
