//! `prombus sub`: receives events as a member of a consumer group, and prints them or runs a command for each.

mod command;
mod leave;
mod print;
mod reason;
mod stderr_tail;
mod stderr_writer;
mod worker;

use super::serve::stop_signals::{Signals, Stop};
use super::server_client;
use crate::args::{SubArgs, filter};
use crate::messages::print_error;
use crate::wrong_arguments::WrongArguments;
use prombus_client::{Client, ConnectionChange, Start, Subscribe, SubscribeOptions};
use std::future::IntoFuture as _;
use std::process::ExitCode;
use std::time::Duration;
use stderr_writer::StderrWriter;

/// Runs the command.
///
/// # Errors
/// When the server refuses the subscription or cannot be reached, or a command cannot be started.
pub fn run(args: &SubArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(sub(args))
}

async fn sub(args: &SubArgs) -> anyhow::Result<ExitCode> {
    prombus_protocol::check_pattern(&args.topic).map_err(WrongArguments::new)?;
    let options = options(args)?;
    let client = server_client::client(&args.server)?;
    let mut signals = Signals::install_with_hang_up()?;
    let stderr = StderrWriter::start();
    let subscribed = tokio::select! {
        biased;
        stop = signals.next() => return Ok(exit_code(Some(stop))),
        subscribed = subscribe(args, options, &client, stderr.clone()).into_future() => subscribed?,
    };
    if subscribed.created() {
        announce(args);
    }
    let stopped = match &args.exec {
        Some(text) => worker::run(args, text, stderr, subscribed, &mut signals).await?,
        None => print::run(args, stderr, subscribed, &mut signals).await?,
    };
    Ok(exit_code(stopped))
}

/// The options of the subscription.
fn options(args: &SubArgs) -> Result<SubscribeOptions, WrongArguments> {
    let options = SubscribeOptions {
        from: args.from,
        // Events that wait in this process, or are not wanted because of --limit, could be handled by other workers.
        max_in_flight: args.exec.as_ref().map(|_| match args.limit.map(u32::try_from) {
            Some(Ok(limit)) => args.concurrency.min(limit),
            _ => args.concurrency,
        }),
        ack_timeout_ms: args.ack_timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        max_attempts: args.max_attempts,
        filter: filter::for_group(&args.filter.filters).map_err(WrongArguments::new)?,
        name: args.name.clone(),
        ..SubscribeOptions::default()
    };
    options.check().map_err(WrongArguments::new)?;
    Ok(options)
}

fn subscribe(args: &SubArgs, options: SubscribeOptions, client: &Client, stderr: StderrWriter) -> Subscribe {
    let address = client.address().to_string();
    let say = move |change: &ConnectionChange| match change {
        ConnectionChange::Lost(why) => {
            stderr.print_error(&format!("the connection to {address} broke: {why}; reconnecting"));
        }
        ConnectionChange::Restored => stderr.print_error(&format!("connected to {address} again")),
    };
    // A command may run for any time; `--timeout` limits it.
    client
        .subscribe(&args.topic, &args.group)
        .options(options)
        .max_extension(Duration::MAX)
        .on_connection_change(say)
}

/// Says where a new group starts: a mistyped name also creates one.
fn announce(args: &SubArgs) {
    let start = match args.from {
        Start::Latest => "after the newest event; --from earliest starts a new group at the oldest one",
        Start::Earliest => "at the oldest event",
        Start::Ts(_) => "at the given time",
        Start::AfterId(_) => "after the given event",
    };
    print_error(&format!("created the group {} of {}, which starts {start}", args.group, args.topic));
}

/// The exit code: that of the signal that ended the command, or 0.
fn exit_code(stopped: Option<Stop>) -> ExitCode {
    stopped.map_or(ExitCode::SUCCESS, |stop| ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(1)))
}
