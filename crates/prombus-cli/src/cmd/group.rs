//! `prombus group`: lists, shows and changes groups.

mod change;
mod list;
mod request;
mod seek;
mod settle;
mod show;
mod view;

use super::server_client;
use crate::args::GroupCommand;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached.
pub fn run(command: &GroupCommand) -> anyhow::Result<ExitCode> {
    server_client::block_on(async {
        match command {
            GroupCommand::List { topic, prefix, json, server } => {
                let client = server_client::client(server)?;
                list::run(&client, topic.as_deref(), prefix.as_deref(), json.json).await
            }
            GroupCommand::Show { group, json, server } => {
                show::run(&server_client::client(server)?, group, json.json).await
            }
            GroupCommand::Create(args) => change::create(&server_client::client(&args.server)?, args).await,
            GroupCommand::Seek(args) => seek::run(&server_client::client(&args.server)?, args).await,
            GroupCommand::Pause { group, json, server } => {
                change::pause(&server_client::client(server)?, group, true, json.json).await
            }
            GroupCommand::Resume { group, json, server } => {
                change::pause(&server_client::client(server)?, group, false, json.json).await
            }
            GroupCommand::Delete { group, yes, json, server } => {
                change::delete(&server_client::client(server)?, group, *yes, json.json).await
            }
            GroupCommand::Settle(args) => settle::run(&server_client::client(&args.server)?, args).await,
        }
    })
}
