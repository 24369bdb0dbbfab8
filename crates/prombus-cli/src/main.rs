//! The binary `prombus`: parses arguments, calls the command, and turns what came of it into an exit code.
//!
//! Exit codes: 0 all is well; 1 it did not work; 2 the arguments are wrong (`verify`, `repair`: it could not run); 141 whoever reads what
//! is printed went away, as `head` does: what a shell says of other programs then.

mod args;
mod cmd;
mod config;
mod logging;

use args::{Args, Command};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Config(command) => cmd::config::run(&command),
        Command::Verify(args) => cmd::verify::run(&args),
        Command::Repair(args) => cmd::repair::run(&args),
        Command::Token(command) => cmd::token::run(&command),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Topic(command) => cmd::topic::run(&command),
        Command::Export(args) => cmd::export::run(&args),
        Command::Import(args) => cmd::import::run(&args),
        Command::Replay(args) => cmd::replay::run(&args),
        Command::Dlq(command) => cmd::dlq::run(&command),
        Command::Backup(args) => cmd::backup::run(&args),
        Command::Outbox(command) => cmd::outbox::run(&command),
    };
    outcome.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::from(141);
        }
        complain(&one_line(&error));
        ExitCode::FAILURE
    })
}

/// Whether nobody takes what is printed any more. Connections to servers have errors of their own.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Says what is wrong, in a line on stderr.
pub(crate) fn complain(what: &str) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(std::io::stderr(), "prombus: {what}");
}

/// An error and its causes in a line. Some errors name their cause themselves: it is not said twice.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("disk gone").context("writing a: disk gone").context("closing");
        assert_eq!(one_line(&error), "closing: writing a: disk gone");
    }
}
