//! `prombus outbox drain`: publishes the rows that services wrote to the outbox of their database.

mod remote;
mod source;

use super::server_client;
use crate::args::{OutboxArgs, OutboxCommand};
use crate::config::{LogFormat, LogSettings};
use crate::messages::{counted, print_error, was};
use crate::output::stdout;
use prombus::outbox::{DrainerCounts, OutboxDrainer};
use remote::Remote;
use serde_json::json;
use source::Source;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Runs the command.
///
/// # Errors
/// When the database or the server cannot be reached or refuses access.
pub fn run(command: &OutboxCommand) -> anyhow::Result<ExitCode> {
    let OutboxCommand::Drain(args) = command;
    crate::logging::start(&LogSettings { filter: "warn".to_owned(), format: LogFormat::Text })?;
    server_client::block_on(drain(args))
}

async fn drain(args: &OutboxArgs) -> anyhow::Result<ExitCode> {
    let source = Source::open(args).await?;
    let client = server_client::client(&args.server)?;
    let address = client.address().clone();
    match client.open().await {
        // A server that cannot be reached now may be reached later. Waiting does not change a certificate or a token.
        Err(error) if args.once || !error.is_passing() => return Err(error.into()),
        _ => {}
    }
    let mut drainer = OutboxDrainer::new(source.store(), Arc::new(Remote::new(client)))
        .batch_size(args.batch)
        .lease_ms(args.lease_ms)
        .interval(Duration::from_millis(args.interval_ms));
    if let Some(worker) = &args.worker {
        drainer = drainer.worker(worker.as_str());
    }
    let counts = if args.once {
        // Signals keep their default action and kill the process: claimed rows become free when their lease expires.
        let drained = drainer.drain().await;
        let counts = drainer.counts();
        if let Err(error) = drained {
            print_counts(&counts, args.json.json)?;
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
        if !args.json.json {
            writeln!(stdout(), "draining {source} to {address}; Ctrl-C stops")?;
        }
        drainer.run_until(stopped).await
    };
    print_counts(&counts, args.json.json)?;
    let left = source.counts().await?;
    // Pending rows were added after the drainer's last check and are not a failure. Rows that are claimed or have an error are
    // unfinished, whichever drainer holds them.
    let is_unfinished = left.contains_key("claimed") || left.contains_key("error");
    let left: Vec<String> = left
        .iter()
        .filter(|(status, _)| *status != "sent")
        .map(|(status, rows)| format!("{rows} {status}"))
        .collect();
    if !left.is_empty() && !args.json.json {
        writeln!(stdout(), "left in {source}: {}", left.join(", "))?;
    }
    if args.once && (counts.errors > 0 || is_unfinished) {
        print_error("not every row was published; see the fields last_err and worker of the rows");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_counts(counts: &DrainerCounts, is_json: bool) -> anyhow::Result<()> {
    let DrainerCounts { published, duplicates, errors, dead, .. } = *counts;
    let text = match is_json {
        true => json!({ "published": published, "duplicates": duplicates, "errors": errors, "dead": dead })
            .to_string(),
        false => format!(
            "{} published, {duplicates} {} already there, {}, {} given up",
            counted(published, "event"),
            was(duplicates),
            counted(errors, "failed attempt"),
            counted(dead, "row"),
        ),
    };
    writeln!(stdout(), "{text}")?;
    Ok(())
}
