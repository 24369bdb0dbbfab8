//! `prombus state`: the newest event of each key of a topic, and its changes.

mod follow;
mod print;

use super::server_client;
use super::style::put_line;
use crate::args::StateArgs;
use crate::output::{self, stdout};
use anyhow::{Context, bail};
use bytes::Bytes;
use follow::Position;
use print::{Printer, row};
use prombus_client::{Client, ClientError, EventRecord};
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached, or when the topic does not have the key.
pub fn run(args: &StateArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(async {
        let client = server_client::client(&args.server)?;
        match args.follow {
            true => output::while_read(state(&client, args)).await,
            false => state(&client, args).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn state(client: &Client, args: &StateArgs) -> anyhow::Result<()> {
    match &args.key {
        Some(key) => one(client, args, key).await,
        None => all(client, args).await,
    }
}

/// The state of all keys.
async fn all(client: &Client, args: &StateArgs) -> anyhow::Result<()> {
    let at = args.at.map(|at| at.to_string());
    let mut query = vec![("ndjson", "1")];
    query.extend(at.as_deref().map(|at| ("at", at)));
    let mut lines = client.lines(&Client::path(&["state", &args.topic], &query)).await?;
    let position = match (lines.header("x-position-id"), lines.header("x-position-seq")) {
        (Some(id), Some(seq)) => Some(Position {
            id: id.parse().context("x-position-id")?,
            seq: seq.parse().context("x-position-seq")?,
        }),
        _ => None,
    };
    let changes = if args.follow { Some(follow::open(client, args, position).await?) } else { None };
    let (mut rows, mut is_empty) = (Vec::new(), true);
    while let Some(line) = lines.next().await? {
        is_empty = false;
        if args.json {
            put_line(&line)?;
        } else {
            rows.push(row(&parsed(&line)?));
        }
    }
    if is_empty && !args.follow {
        // The state of an unknown topic is empty.
        server_client::known_topic(client, &args.topic).await?;
        if !args.json {
            writeln!(stdout(), "no keys")?;
        }
        return Ok(());
    }
    let printer = Printer::new(args.json, &rows);
    printer.table(rows)?;
    match changes {
        Some(changes) => follow::print(changes, position, 0, &printer).await,
        None => Ok(()),
    }
}

/// The state of one key.
async fn one(client: &Client, args: &StateArgs, key: &str) -> anyhow::Result<()> {
    // The position is read before the state of the key: a change of the key after it is in the state or is followed.
    let changes = if args.follow {
        let position = topic_position(client, &args.topic).await?;
        Some((follow::open(client, args, position).await?, position))
    } else {
        None
    };
    let at = args.at.map(|at| at.to_string());
    let mut query = vec![("key", key)];
    query.extend(at.as_deref().map(|at| ("at", at)));
    let found = match client.lines(&Client::path(&["state", &args.topic], &query)).await {
        Ok(mut lines) => lines.next().await?,
        Err(ClientError::Refused { status: Some(404), .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let printer = Printer::new(args.json, &[]);
    let Some(line) = found else {
        if let Some((changes, position)) = changes {
            return follow::print(changes, position, 0, &printer).await;
        }
        server_client::known_topic(client, &args.topic).await?;
        bail!("{} has no key {key:?}", args.topic);
    };
    let event = parsed(&line)?;
    if let Some((changes, position)) = changes {
        printer.change(&line, &event)?;
        return follow::print(changes, position, event.seq, &printer).await;
    }
    put_line(if args.json { &line } else { event.payload.get().as_bytes() })?;
    Ok(())
}

/// The position of the newest event of a topic.
async fn topic_position(client: &Client, topic: &str) -> anyhow::Result<Option<Position>> {
    #[derive(Deserialize)]
    struct Page {
        position: Option<Position>,
    }
    let page: Page = client.get_json(&Client::path(&["state", topic], &[("limit", "1")])).await?;
    Ok(page.position)
}

fn parsed(line: &Bytes) -> anyhow::Result<EventRecord> {
    serde_json::from_slice(line).context("the server sent an invalid event")
}
