//! The binary `prombus`: parses arguments, calls the command, and turns its result into an exit code.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong arguments (`verify`, `repair`, `inspect`: the command could not run); 129, 130 or 143 a
//! signal ended the command; 141 the reader of the output closed the pipe, as `head` does (shells report 141 for a program that SIGPIPE
//! killed).

mod args;
mod cmd;
mod config;
mod contexts;
mod logging;
mod messages;
mod output;
mod time;
mod wrong_arguments;

use args::{Args, Command};
use clap::Parser;
use messages::{one_line, print_error};
use std::process::ExitCode;
use wrong_arguments::WrongArguments;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Pub(args) => cmd::publish::run(&args),
        Command::Sub(args) => cmd::sub::run(&args),
        Command::Tail(args) => cmd::tail::run(&args),
        Command::Config(command) => cmd::config::run(&command),
        Command::Verify(args) => cmd::verify::run(&args),
        Command::Repair(args) => cmd::repair::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Token(command) => cmd::token::run(&command),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Topic(command) => cmd::topic::run(&command),
        Command::Group(command) => cmd::group::run(&command),
        Command::State(args) => cmd::state::run(&args),
        Command::Health(args) => cmd::health::run(&args),
        Command::Settings(args) => cmd::settings::run(&args),
        Command::Export(args) => cmd::export::run(&args),
        Command::Import(args) => cmd::import::run(&args),
        Command::Replay(args) => cmd::replay::run(&args),
        Command::Dlq(command) => cmd::dlq::run(&command),
        Command::Backup(args) => cmd::backup::run(&args),
        Command::Outbox(command) => cmd::outbox::run(&command),
        Command::Context(command) => cmd::context::run(&command),
        Command::Completions(args) => cmd::completions::run(&args),
        Command::Man(args) => cmd::man::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        if messages::is_broken_pipe(&error) {
            return ExitCode::from(141);
        }
        print_error(&one_line(&error));
        match WrongArguments::caused(&error) {
            true => ExitCode::from(WrongArguments::EXIT_CODE),
            false => ExitCode::FAILURE,
        }
    })
}
