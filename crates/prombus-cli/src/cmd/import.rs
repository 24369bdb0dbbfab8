//! `prombus import`: publishes events from JSON lines, with their ids.
//!
//! A thread reads and checks lines ahead of the publisher. Chunks are sent one after the other, so that when a bad line is
//! reported all lines before it are on the server's disk.

pub(super) mod line;
mod reader;

use super::replay::covers;
use super::{progress, server_client};
use crate::args::ImportArgs;
use crate::messages::{counted, one_line, print_error, was};
use crate::output::stdout;
use crate::wrong_arguments::WrongArguments;
use anyhow::bail;
use indicatif::ProgressBar;
use prombus_client::{Addressee, ErrorCode, PublishError, Publisher, Record, Setback};
use reader::{Chunk, LineBatch, LineReader};
use serde_json::json;
use std::fmt;
use std::io::{IsTerminal, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Chunks that are read ahead.
const READ_AHEAD: usize = 2;

/// The results so far.
#[derive(Default)]
struct Tally {
    imported: u64,
    duplicates: u64,
    bad: u64,
    /// Whether some lines had no id, so that a second run would publish them again.
    has_made_ids: bool,
    /// The first line that was not sent.
    next_line: u64,
}

/// Runs the command.
///
/// # Errors
/// When the server or the file refuses access or fails.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(import(args))
}

async fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let (topic, file) = places(args)?;
    if let Some(topic) = &topic {
        prombus_protocol::check_topic(topic).map_err(WrongArguments::new)?;
    }
    if args.payloads && topic.is_none() {
        let why = "--payloads needs a topic: prombus import --payloads TOPIC FILE";
        return Err(WrongArguments::new(why).into());
    }
    let client = server_client::client(&args.server)?;
    let reader = LineReader::open(file.as_deref())?;
    let bar = reader.byte_count.map_or_else(progress::endless, progress::bytes);
    // An unreachable server is reported before anything is read.
    client.open().await?;
    let (chunks, mut found) = mpsc::channel(READ_AHEAD);
    let (is_payloads, from_line) = (args.payloads, args.from_line);
    std::thread::spawn(move || reader.read(topic, is_payloads, from_line, &chunks));
    let mut publisher = Publisher::new(client).on_setback({
        let bar = bar.clone();
        move |setback| show_setback(&bar, setback)
    });
    let mut tally = Tally { next_line: from_line, ..Tally::default() };
    let ended = send_all(args, &mut found, &mut publisher, &bar, &mut tally).await;
    bar.finish_and_clear();
    let Tally { imported, duplicates, bad, .. } = tally;
    let text = match args.json.json {
        true => {
            let complete = ended.is_ok() && bad == 0;
            json!({ "imported": imported, "duplicates": duplicates, "bad": bad, "complete": complete })
                .to_string()
        }
        false => {
            let (events, were) = (counted(imported, "event"), was(duplicates));
            format!("{events} imported, {duplicates} {were} already there")
        }
    };
    writeln!(stdout(), "{text}")?;
    if let Err(error) = ended {
        print_error(&one_line(&error));
        print_error(&tally.how_to_continue());
        return Ok(ExitCode::FAILURE);
    }
    if bad > 0 {
        print_error(&format!("{} {} skipped", counted(bad, "bad line"), was(bad)));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn send_all(
    args: &ImportArgs,
    found: &mut mpsc::Receiver<LineBatch>,
    publisher: &mut Publisher,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(end_at_second_interrupt());
    loop {
        // An interrupt takes effect between chunks, so that the line to continue from is known.
        let found = tokio::select! {
            biased;
            _ = interrupt.recv() => bail!("the import was interrupted"),
            found = found.recv() => found,
        };
        let Some(found) = found else { return Ok(()) };
        match found {
            LineBatch::Chunk(chunk) => send(args, chunk, publisher, bar, tally).await?,
            LineBatch::Bad { line, why } => {
                tally.bad += 1;
                if !args.skip_bad {
                    bail!("line {line}: {why}");
                }
                tally.next_line = line + 1;
                bar.suspend(|| print_error(&format!("line {line}: {why}; skipped")));
            }
            LineBatch::Broken(error) => return Err(error),
        }
    }
}

/// Exits at the second Ctrl-C, without waiting for a server that does not respond.
async fn end_at_second_interrupt() {
    let Ok(mut interrupt) = signal(SignalKind::interrupt()) else { return };
    interrupt.recv().await;
    interrupt.recv().await;
    std::process::exit(130);
}

/// Publishes a chunk and waits for all its responses.
async fn send(
    args: &ImportArgs,
    chunk: Chunk,
    publisher: &mut Publisher,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let Chunk { lines, mut records, end_bytes, has_made_ids, .. } = chunk;
    tally.has_made_ids |= has_made_ids;
    let outcomes = publisher.publish(&mut records).await?;
    let outcomes = records.iter().zip(outcomes).map(|(record, outcome)| {
        outcome.map_err(|error| LineError { group: missing_group(record, &error), error })
    });
    tally.next_line = lines.last().map_or(tally.next_line, |last| last + 1);
    let (mut refused, mut stopped) = (None, None);
    for (line, outcome) in lines.into_iter().zip(outcomes) {
        match outcome {
            Ok(published) if published.duplicate => tally.duplicates += 1,
            Ok(_) => tally.imported += 1,
            Err(error) if is_about_the_line(&error) && args.skip_bad => {
                tally.bad += 1;
                bar.suspend(|| print_error(&format!("line {line}: {error}; skipped")));
            }
            Err(error) if error.error.is_permanent() => {
                // Lines after a refused line may have been imported, so each refused line is reported by its number.
                let named = anyhow::anyhow!("line {line}: {error}");
                if let Some(before) = refused.replace(named) {
                    bar.suspend(|| print_error(&one_line(&before)));
                }
            }
            Err(error) => {
                // The line may succeed later, so the next run must not start after it.
                stopped.get_or_insert((line, error));
            }
        }
    }
    bar.set_message(format!("{} events, ", tally.imported + tally.duplicates));
    bar.set_position(end_bytes);
    if let Some((line, error)) = stopped {
        tally.next_line = line;
        if let Some(before) = refused.replace(anyhow::anyhow!("line {line}: {error}")) {
            bar.suspend(|| print_error(&one_line(&before)));
        }
    }
    refused.map_or(Ok(()), Err)
}

/// Why a line was not imported.
struct LineError {
    error: PublishError,
    /// The group that the event is addressed to, if it does not exist or does not read the topic, and whether its subscription covers the
    /// topic.
    group: Option<(Addressee, bool)>,
}

impl fmt::Display for LineError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, group } = self;
        write!(formatter, "{error}")?;
        let Some((Addressee { subscription, group }, reads_topic)) = group else { return Ok(()) };
        let (subscription, group) = (quoted(subscription), quoted(group));
        match reads_topic {
            true => write!(formatter, "; `prombus group create {subscription} {group}` creates the group"),
            false => write!(formatter, "; the subscription {subscription} does not cover the topic"),
        }
    }
}

/// The value of [`LineError::group`]: only if the server refused the event because of its group.
fn missing_group(record: &Record, error: &PublishError) -> Option<(Addressee, bool)> {
    let addressee = record.options.addressee.clone().filter(|_| error.code() == Some(ErrorCode::NotFound))?;
    let reads_topic = covers(&addressee, &record.topic);
    Some((addressee, reads_topic))
}

/// An argument as a shell needs it.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Whether the error concerns only this line, its topic or its addressee, so that other lines may succeed.
fn is_about_the_line(LineError { error, group }: &LineError) -> bool {
    let is_about_its_topic = matches!(error.code(), Some(ErrorCode::Forbidden | ErrorCode::LimitReached));
    error.is_permanent() || is_about_its_topic || group.is_some()
}

impl Tally {
    fn how_to_continue(&self) -> String {
        let line = self.next_line;
        if self.has_made_ids {
            return format!(
                "to continue, add --from-line {line} (without it, lines that have no id would be added twice)"
            );
        }
        format!(
            "to continue, run the command again: events that the topic already has are not added twice (--from-line {line} \
             starts after the lines that were sent, --skip-bad skips bad lines)"
        )
    }
}

fn show_setback(bar: &ProgressBar, setback: &Setback) {
    match setback {
        Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
        Setback::Unavailable(why) => bar.suspend(|| print_error(&format!("{why}; retrying"))),
    }
}

/// The topic and the file among the arguments. A single argument is always a file, so that a mistyped file name is not taken for
/// a topic.
fn places(args: &ImportArgs) -> anyhow::Result<(Option<String>, Option<PathBuf>)> {
    let file = |text: &str| (text != "-").then(|| PathBuf::from(text));
    match args.places.as_slice() {
        [] if stdin().is_terminal() => bail!("no file is named; `prombus import -` reads standard input"),
        [] => Ok((None, None)),
        [one] if one == "-" || Path::new(one).exists() => Ok((None, file(one))),
        [one] => {
            bail!("no file {one}; `prombus import {one} -` reads standard input into the topic {one}")
        }
        [topic, path, ..] => Ok((Some(topic.clone()), file(path))),
    }
}
