//! `prombus bench`: loads for a server (a running one, or one of its own) or for the library in this process. Every message is
//! accounted for: what was lost, came twice or came out of order is in the table, and makes the command fail.

mod load;
mod report;
mod target;

use crate::args::{BenchArgs, Load};
use crate::messages::print_error;
use std::io::{Write, stdout};
use std::process::ExitCode;
use target::Target;

/// What shells answer for a program that an interrupt ended.
const INTERRUPTED: i32 = 130;

/// Runs the command.
///
/// # Errors
/// When a server is not there, refuses, or goes away.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    // A client of thousands of connections needs as many descriptors; where it gets too few, connecting says so.
    let _ = prombus_server::raise_descriptor_limit();
    stop_at_signals()?;
    let loads = if args.loads.is_empty() { Load::ALL.to_vec() } else { args.loads.clone() };
    let mut rows = Vec::new();
    for run in 1..=args.runs {
        for load in &loads {
            let target = Target::open(args, load)?;
            let measured = load::measure(*load, args, &target, run);
            // Also what failed leaves nothing behind.
            let closed = target.close();
            rows.push(measured?);
            closed?;
        }
    }
    let is_clean = rows.iter().all(|row| row.measurement.balance.is_clean());
    let text = if args.json { report::json(args, &rows)? } else { report::text(args, &rows) };
    writeln!(stdout(), "{text}")?;
    if !is_clean {
        print_error("not every message came once and in order; see the last columns");
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whoever interrupts a run leaves no server and no data behind.
fn stop_at_signals() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = {
        let _inside = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        prombus_bench::process::stop_all();
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}
