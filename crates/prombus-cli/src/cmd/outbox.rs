//! `prombus outbox drain`: publishes what services wrote into the outbox of their database.

mod remote;
mod source;

use super::server_client;
use crate::args::{OutboxArgs, OutboxCommand, ServerArgs};
use crate::config::{LogFormat, LogSettings};
use crate::messages::print_error;
use prombus::outbox::{DrainerCounts, OutboxDrainer};
use remote::Remote;
use source::Source;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

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
    let source = Source::open(args).await?;
    let client = server_client::client(&ServerArgs { url: args.to.clone(), token: args.token.clone() })?;
    let address = client.address().clone();
    if args.once {
        client.open().await?;
    }
    let mut drainer = OutboxDrainer::new(source.store(), Arc::new(Remote::new(client)))
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
        writeln!(stdout(), "draining {source} to {address}; Ctrl-C stops")?;
        drainer.run_until(stopped).await
    };
    say(&counts)?;
    let left = source.counts().await?;
    // What is pending now came after the last look; these two are not done, whoever has them.
    let is_left = left.contains_key("claimed") || left.contains_key("error");
    let left: Vec<String> = left
        .iter()
        .filter(|(status, _)| *status != "sent")
        .map(|(status, rows)| format!("{rows} {status}"))
        .collect();
    if !left.is_empty() {
        writeln!(stdout(), "left in {source}: {}", left.join(", "))?;
    }
    if args.once && (counts.errors > 0 || is_left) {
        print_error("not every row was published; last_err and worker of the rows say why");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn say(counts: &DrainerCounts) -> anyhow::Result<()> {
    let DrainerCounts { published, duplicates, errors, dead, .. } = counts;
    writeln!(
        stdout(),
        "{published} events published, {duplicates} were there already, {errors} failed attempts, {dead} rows given up"
    )?;
    Ok(())
}
