//! `prombus bench`: runs loads against a server (a running one, or one that it starts) or against the library in this process.
//! Every message is accounted for: the command fails if a message is lost, duplicated or out of order.

mod load;
mod report;
mod target;

use crate::args::{BenchArgs, Load};
use crate::messages::print_error;
use crate::output::stdout;
use std::io::Write;
use std::process::ExitCode;
use target::Target;

/// The exit code that shells report for a program that SIGINT killed.
const INTERRUPTED: i32 = 130;

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached, refuses a request, or closes the connection.
pub fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    // Each connection needs a file descriptor. If the limit stays too low, connecting fails with its own error.
    let _ = prombus_server::raise_descriptor_limit();
    stop_at_signals()?;
    let loads = if args.loads.is_empty() { Load::ALL.to_vec() } else { args.loads.clone() };
    let mut rows = Vec::new();
    for run in 1..=args.runs {
        for load in &loads {
            let target = Target::open(args, load)?;
            let measured = load::measure(*load, args, &target, run);
            // Close before returning an error, so that a failed load leaves no server and no data behind.
            let closed = target.close();
            rows.push(measured?);
            closed?;
        }
    }
    let is_clean = rows.iter().all(|row| row.measurement.balance.is_clean());
    let text = if args.json.json { report::json(args, &rows)? } else { report::text(args, &rows) };
    writeln!(stdout(), "{text}")?;
    if !is_clean {
        print_error("not every message arrived once and in order; see the last columns");
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Stops the started servers and removes their data when a signal ends the run.
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
