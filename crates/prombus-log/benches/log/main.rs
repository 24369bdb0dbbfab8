//! Measures the speed of the log, and compares it with a loop that only writes and syncs the same bytes.
//!
//! ```text
//! cargo bench -p prombus-log                                  # everything, three times; takes half an hour
//! cargo bench -p prombus-log -- --quick                       # once, short rounds
//! cargo bench -p prombus-log -- --only "1024 in flight"       # rows whose name contains this
//! cargo bench -p prombus-log -- --json results.json           # also every single round, for machines
//! PROMBUS_BENCH_DIR=/mnt/disk cargo bench -p prombus-log      # on another disk than that of the target folder
//! ```
//!
//! A round runs in a fresh folder that is removed afterwards. The rounds of a row are spread over the whole run, and log and
//! raw loop take turns within a round, so that both see the same disk. The median of the rounds is printed.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table and the progress are what it is for"
)]

mod append_rows;
mod appends;
mod arguments;
mod ids;
mod json;
mod machine;
mod publisher;
mod raw;
mod reads;
mod recorder;
mod report;
mod scratch;
mod table;

use crate::arguments::{Arguments, Command};
use crate::machine::Machine;
use crate::report::Report;
use crate::scratch::Scratch;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

/// Counts the allocations of all threads of a round, including those of the log.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Any error. A benchmark stops at the first one.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let ran = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            print!("{}", arguments::HELP);
            Ok(())
        }
        Ok(Command::Run(arguments)) => run(&arguments),
        Err(message) => Err(message.into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let machine = Machine::look(scratch.path());
    print!("{machine}");
    if machine.is_in_memory() {
        eprintln!("warning: {} is in memory; set PROMBUS_BENCH_DIR to a disk", scratch.path().display());
    }
    let mut appends = append_rows::rows();
    appends.retain(|row| arguments.wants(&row.name()));
    let mut reads = reads::rows();
    reads.retain(|row| arguments.wants(&row.name()));
    if appends.is_empty() && reads.is_empty() {
        return Err("no row matches --only; without it all rows run".into());
    }

    let mut report = Report::new(&appends, &reads);
    for repetition in 1..=arguments.repetitions {
        let progress = format!("[{repetition}/{}]", arguments.repetitions);
        for (at, row) in appends.iter().enumerate() {
            eprint!("{progress} {} ... ", row.name());
            let plan = row.plan(arguments);
            if let Some(reason) = row.lacks_room(plan, scratch.path()) {
                eprintln!("skipped: {reason}");
                continue;
            }
            let round = appends::measure(row, plan, &scratch)?;
            eprintln!("{round}");
            report.add_append(at, round);
        }
        for (at, row) in reads.iter().enumerate() {
            eprint!("{progress} {} ... ", row.name());
            let round = reads::measure(row, arguments, &scratch)?;
            eprintln!("{round}");
            report.add_read(at, round);
        }
    }
    print!("{report}");
    if let Some(file) = &arguments.json {
        std::fs::write(file, format!("{}\n", report.json(&machine, arguments)))?;
        eprintln!("every round is in {}", file.display());
    }
    Ok(())
}
