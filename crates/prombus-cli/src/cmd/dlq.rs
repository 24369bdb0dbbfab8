//! `prombus dlq`: lists dead letters and publishes their events again.

mod letters;
mod redrive;
mod show;

use crate::args::DlqCommand;
use crate::cmd::server_client::block_on;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached.
pub fn run(command: &DlqCommand) -> anyhow::Result<ExitCode> {
    match command {
        DlqCommand::List(args) => block_on(show::list(args))?,
        DlqCommand::Show(args) => block_on(show::show(args))?,
        DlqCommand::Redrive(args) => return block_on(redrive::redrive(args)),
    }
    Ok(ExitCode::SUCCESS)
}
