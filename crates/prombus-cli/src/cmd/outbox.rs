//! `prombus outbox drain`: publishes what services wrote into the outbox of their database.

use super::server_client;
use crate::args::{OutboxArgs, OutboxCommand, ServerArgs};
use crate::config::{LogFormat, LogSettings};
use crate::messages::complain;
use anyhow::{Context, bail};
use prombus::BoxFuture;
use prombus::outbox::{
    DrainerCounts, OutboxDrainer, OutboxPublisher, OutboxRecord, PublishFailure, SqliteOutbox,
};
use prombus_client::{ErrorCode, PublishError, Publisher, Record};
use rusqlite::{Connection, OpenFlags};
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

/// How long a batch is sent again before the drainer gives its rows back and waits longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the command.
///
/// # Errors
/// When the database or the server does not let it.
pub fn run(command: &OutboxCommand) -> anyhow::Result<ExitCode> {
    let OutboxCommand::Drain(args) = command;
    crate::logging::start(&LogSettings { filter: "warn".to_owned(), format: LogFormat::Text })?;
    server_client::block_on(drain(args))
}

async fn drain(args: &OutboxArgs) -> anyhow::Result<ExitCode> {
    let file = args.sqlite.display();
    if !args.init {
        check_is_there(&args.sqlite)?;
    }
    let outbox = SqliteOutbox::open(&args.sqlite).with_context(|| file.to_string())?;
    let client = server_client::client(&ServerArgs { url: args.to.clone(), token: args.token.clone() })?;
    let address = client.address().clone();
    if args.once {
        client.open().await?;
    }
    let remote = Remote { publisher: Mutex::new(Publisher::new(client).patience(PATIENCE)) };
    let mut drainer = OutboxDrainer::new(Arc::new(outbox.clone()), Arc::new(remote))
        .batch_size(args.batch)
        .lease_ms(args.lease_ms)
        .interval(Duration::from_millis(args.interval_ms));
    if let Some(worker) = &args.worker {
        drainer = drainer.worker(worker.as_str());
    }
    let counts = if args.once {
        // Signals are left alone: they end it at once, and rows that it holds are free again when their lease ends.
        let drained = drainer.drain().await;
        let counts = drainer.counts();
        if let Err(error) = drained {
            say(&counts)?;
            return Err(error.into());
        }
        counts
    } else {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stopped = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        writeln!(stdout(), "draining {file} to {address}; Ctrl-C stops")?;
        drainer.run_until(stopped).await
    };
    say(&counts)?;
    let left = outbox.counts().await?;
    // What is pending now came after the last look; these two are not done, whoever has them.
    let is_left = left.contains_key("claimed") || left.contains_key("error");
    let left: Vec<String> = left
        .iter()
        .filter(|(status, _)| *status != "sent")
        .map(|(status, rows)| format!("{rows} {status}"))
        .collect();
    if !left.is_empty() {
        writeln!(stdout(), "left in {file}: {}", left.join(", "))?;
    }
    if args.once && (counts.errors > 0 || is_left) {
        complain("not every row was published; the columns last_err and worker say why");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the file is a database with an outbox: a mistyped name should make none.
fn check_is_there(path: &Path) -> anyhow::Result<()> {
    let file = path.display();
    if !path.is_file() {
        bail!("there is no file {file}; --init makes it");
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .with_context(|| file.to_string())?;
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'outbox')";
    let has_table: bool =
        connection.query_row(sql, [], |row| row.get(0)).with_context(|| file.to_string())?;
    if !has_table {
        bail!("{file} has no table outbox; --init makes it");
    }
    Ok(())
}

fn say(counts: &DrainerCounts) -> anyhow::Result<()> {
    let DrainerCounts { published, duplicates, errors, dead, .. } = counts;
    writeln!(
        stdout(),
        "{published} events published, {duplicates} were there already, {errors} failed attempts, {dead} rows given up"
    )?;
    Ok(())
}

/// A server that rows go to.
struct Remote {
    publisher: Mutex<Publisher>,
}

impl OutboxPublisher for Remote {
    fn publish<'a>(
        &'a self,
        records: &'a [OutboxRecord],
    ) -> BoxFuture<'a, Vec<Result<prombus::Published, PublishFailure>>> {
        Box::pin(async move {
            let mut copies: Vec<Record> = records
                .iter()
                .map(|record| Record {
                    topic: record.topic.clone(),
                    payload: record.payload.clone(),
                    options: record.options(),
                })
                .collect();
            match self.publisher.lock().await.publish(&mut copies).await {
                Ok(outcomes) => outcomes.into_iter().map(outcome).collect(),
                Err(error) => {
                    let failure = PublishFailure::Unavailable(error.to_string());
                    records.iter().map(|_| Err(failure.clone())).collect()
                }
            }
        })
    }
}

fn outcome(
    outcome: Result<prombus_client::Published, PublishError>,
) -> Result<prombus::Published, PublishFailure> {
    use ErrorCode::{BadJson, BadRequest, BadToken, BadTopic, StorageFull, TooLarge, Unauthorized};
    let error = match outcome {
        Ok(prombus_client::Published { id, seq, duplicate }) => {
            return Ok(prombus::Published { id, seq, duplicate });
        }
        Err(error) => error,
    };
    let text = error.to_string();
    Err(match error.code() {
        Some(BadJson | BadRequest | BadTopic | TooLarge) => PublishFailure::Permanent(text),
        Some(Unauthorized | BadToken | StorageFull) | None => PublishFailure::Unavailable(text),
        Some(_) => PublishFailure::Retry(text),
    })
}
