//! Requests about one group, and the output of their responses.

use crate::args::GroupName;
use crate::cmd::style::{escape_controls, put_json_line};
use crate::output::stdout;
use prombus_client::{Client, ClientError, ErrorCode};
use serde_json::Value;
use std::io::Write;
use std::process::ExitCode;

/// The path of a group on the server, or of an action on it.
pub(super) fn path(group: &GroupName, action: Option<&str>, query: &[(&str, &str)]) -> String {
    let mut segments = vec!["groups", group.topic.as_str(), group.group.as_str()];
    segments.extend(action);
    Client::path(&segments, query)
}

/// Names the group in the error if the server does not know it.
pub(super) fn known<T>(
    client: &Client,
    group: &GroupName,
    answer: Result<T, ClientError>,
) -> anyhow::Result<T> {
    match answer {
        Err(ClientError::Refused { status: Some(404), code: ErrorCode::NotFound, .. }) => {
            anyhow::bail!(
                "no group {:?} on {:?} at {}; `prombus group list` lists all groups",
                group.group,
                group.topic,
                client.address()
            )
        }
        answer => Ok(answer?),
    }
}

/// Prints the server's response, or a text for people.
pub(super) fn print(json: bool, answer: &Value, text: &str) -> anyhow::Result<ExitCode> {
    if json {
        put_json_line(answer)?;
    } else {
        writeln!(stdout(), "{}", escape_controls(text))?;
    }
    Ok(ExitCode::SUCCESS)
}
