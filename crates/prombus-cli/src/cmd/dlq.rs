//! `prombus dlq`: lists dead letters, publishes their events again, and discards them.

mod discard;
mod letters;
mod list;
mod redrive;
mod redriver;
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
        DlqCommand::List(args) => block_on(list::list(args))?,
        DlqCommand::Show(args) => block_on(show::show(args))?,
        DlqCommand::Redrive(args) => return block_on(redrive::redrive(args)),
        DlqCommand::Discard(args) => return block_on(discard::discard(args)),
    }
    Ok(ExitCode::SUCCESS)
}
