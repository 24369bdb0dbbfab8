//! `prombus dlq`: dead letters, what is there and publishing it again.

mod letters;
mod redrive;
mod show;

use crate::args::DlqCommand;
use crate::cmd::server_client::block_on;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server does not let it.
pub fn run(command: &DlqCommand) -> anyhow::Result<ExitCode> {
    match command {
        DlqCommand::List(args) => block_on(show::list(args))?,
        DlqCommand::Show(args) => block_on(show::show(args))?,
        DlqCommand::Redrive(args) => return block_on(redrive::redrive(args)),
    }
    Ok(ExitCode::SUCCESS)
}
