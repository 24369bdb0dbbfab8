//! `prombus pub`: publishes an event, or one event per line of standard input.
//!
//! A thread reads lines and passes on those that have arrived, so that a line is published at once when the next one takes time, and
//! many lines are in flight when the input is fast. Chunks are sent one after the other: when a bad line is reported, all lines
//! before it are on the server's disk.

mod lines;

use super::rate_limiter::RateLimiter;
use super::serve::stop_signals::{Signals, Stop};
use super::{progress, server_client};
use crate::args::PubArgs;
use crate::messages::{counted, is_broken_pipe, one_line, print_error, was};
use crate::output::stdout;
use crate::wrong_arguments::WrongArguments;
use anyhow::{Context, bail};
use indicatif::ProgressBar;
use lines::{Input, Payloads};
use prombus_client::{Client, PublishError, PublishOptions, Published, Publisher, Record, Setback};
use serde::Serialize;
use std::io::{BufWriter, IsTerminal, Write, stderr, stdin};
use std::process::ExitCode;
use std::time::Instant;
use tokio::sync::mpsc;

/// Chunks that are read ahead.
const READ_AHEAD: usize = 2;
const PROGRESS: &str = "{spinner} {human_pos} events, {msg}{per_sec}";

/// The answer to a publish, as `--json` prints it.
#[derive(Serialize)]
struct Answer {
    id: String,
    seq: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    duplicate: bool,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses the event or cannot be reached.
pub fn run(args: &PubArgs) -> anyhow::Result<ExitCode> {
    let options = check(args).map_err(|error| WrongArguments::new(one_line(&error)))?;
    let payloads = Payloads { topic: args.topic.clone(), is_text: args.text, options };
    let payload = args.payload.as_deref().filter(|payload| *payload != "-");
    match payload {
        Some(payload) => {
            let record = payloads.record(payload.as_bytes()).map_err(|why| {
                let advice = "publish a text with --text, or quote it as JSON: '\"hello\"'";
                WrongArguments::new(format!("the payload is {why}; {advice}"))
            })?;
            server_client::block_on(publish_one(args, record))
        }
        None => server_client::block_on(publish_lines(args, payloads)),
    }
}

/// Checks the arguments; returns the options of every event.
fn check(args: &PubArgs) -> anyhow::Result<PublishOptions> {
    prombus_protocol::check_topic(&args.topic)?;
    if args.payload.is_none() && stdin().is_terminal() {
        bail!(
            "no payload; `prombus pub {0} '{{\"a\": 1}}'` publishes one, `prombus pub {0} -` reads one per line",
            args.topic
        );
    }
    if args.id.is_some() && args.payload.as_deref().is_none_or(|payload| payload == "-") {
        bail!("--id needs a payload as an argument: each line of standard input is an event of its own");
    }
    let options = PublishOptions {
        id: args.id,
        key: args.key.clone(),
        headers: args.headers.iter().cloned().collect(),
        tags: args.tags.clone(),
        ..PublishOptions::default()
    };
    options.check()?;
    Ok(options)
}

/// A publisher that reports waits.
fn publisher(client: Client, bar: &ProgressBar) -> Publisher {
    let bar = bar.clone();
    Publisher::new(client).on_setback(move |setback| match setback {
        Setback::RateLimited => bar.set_message("waiting for a rate limit, "),
        Setback::Unavailable(why) => bar.suspend(|| print_error(&format!("{why}; retrying"))),
    })
}

async fn publish_one(args: &PubArgs, record: Record) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    // An unreachable server is reported at once.
    client.open().await?;
    let mut publisher = publisher(client, &ProgressBar::hidden());
    let outcome = publisher.publish(&mut [record]).await?.pop();
    let published = own_answer(outcome.context("the server did not answer")??, args.id.is_some());
    print_answer(args, &published).with_context(|| {
        format!("the event is stored as {} (seq {} of {})", published.id, published.seq, args.topic)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_answer(args: &PubArgs, published: &Published) -> anyhow::Result<()> {
    let Published { id, seq, duplicate } = *published;
    let mut out = stdout();
    if args.json {
        writeln!(out, "{}", json_of(published)?)?;
    } else if !out.is_terminal() {
        writeln!(out, "{id} {seq}")?;
    } else if duplicate {
        writeln!(out, "{id} is already event {seq} of {}; nothing was added", args.topic)?;
    } else {
        writeln!(out, "{id} is event {seq} of {}", args.topic)?;
    }
    Ok(())
}

/// Without an id of the caller, a duplicate is the event itself: the first answer was lost, and the event was sent again.
fn own_answer(published: Published, has_chosen_id: bool) -> Published {
    Published { duplicate: published.duplicate && has_chosen_id, ..published }
}

fn json_of(published: &Published) -> anyhow::Result<String> {
    let Published { id, seq, duplicate } = *published;
    Ok(serde_json::to_string(&Answer { id: id.to_string(), seq, duplicate })?)
}

async fn publish_lines(args: &PubArgs, payloads: Payloads) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    client.open().await?;
    let mut signals = Signals::install()?;
    let bar = progress::bar(0, PROGRESS);
    let (chunks, mut input) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || lines::read(stdin(), &payloads, &chunks));
    let mut sender = Sender {
        publisher: publisher(client, &bar),
        rate: RateLimiter::new(args.rate),
        bar,
        prints_json: args.json,
        published: 0,
        unanswered: Vec::new(),
        not_stored: Vec::new(),
        next_line: 1,
    };
    let started = Instant::now();
    let ended = sender.send_all(&mut input, &mut signals).await;
    sender.bar.finish_and_clear();
    let (published, seconds) = (sender.published, started.elapsed().as_secs_f64());
    // A closed stderr leaves nowhere to report to.
    let _ =
        writeln!(stderr(), "{} published to {} in {seconds:.1} s", counted(published, "event"), args.topic);
    let stopped = match ended {
        Ok(stopped) => stopped,
        // `head` has read enough.
        Err(error) if is_broken_pipe(&error) => return Err(error),
        Err(error) => {
            print_error(&one_line(&error));
            print_error(&sender.how_to_continue());
            return Ok(ExitCode::FAILURE);
        }
    };
    if stopped.is_some() || !sender.unanswered.is_empty() {
        print_error(&sender.how_to_continue());
    }
    Ok(match stopped {
        Some(stop) => ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(1)),
        None => ExitCode::SUCCESS,
    })
}

/// Sends the lines of standard input.
struct Sender {
    publisher: Publisher,
    rate: RateLimiter,
    bar: ProgressBar,
    prints_json: bool,
    /// Events that are on the server's disk.
    published: u64,
    /// Lines that were sent and have no answer: their events may be stored.
    unanswered: Vec<u64>,
    /// Lines that were refused for a reason that is not in the line, such as a token that was revoked.
    not_stored: Vec<u64>,
    /// The first line that was not sent.
    next_line: u64,
}

impl Sender {
    /// Sends all input. Returns the signal that ended it early.
    async fn send_all(
        &mut self,
        input: &mut mpsc::Receiver<Input>,
        signals: &mut Signals,
    ) -> anyhow::Result<Option<Stop>> {
        loop {
            let next = tokio::select! {
                biased;
                stop = signals.next() => return Ok(Some(stop)),
                next = input.recv() => next,
            };
            let chunk = match next {
                None => return Ok(None),
                Some(Input::Chunk(chunk)) => chunk,
                Some(Input::Bad { line, why }) => {
                    self.next_line = line;
                    bail!("line {line}: {why}; all lines before it are published")
                }
                Some(Input::Broken(error)) => return Err(error),
            };
            let mut lines = chunk.lines;
            while !lines.is_empty() {
                let count = self.rate.chunk_size(lines.len()).min(lines.len());
                let rest = lines.split_off(count);
                tokio::select! {
                    biased;
                    stop = signals.next() => return Ok(Some(stop)),
                    () = self.rate.wait(count) => {}
                }
                if let Some(stop) = send_or_stop(self.send(lines), signals).await? {
                    return Ok(Some(stop));
                }
                lines = rest;
            }
        }
    }

    async fn send(&mut self, lines: Vec<(u64, Record)>) -> anyhow::Result<()> {
        let (numbers, mut records): (Vec<u64>, Vec<Record>) = lines.into_iter().unzip();
        self.next_line = numbers.last().map_or(self.next_line, |last| last + 1);
        // A second signal ends the wait for the answers.
        self.unanswered.clone_from(&numbers);
        let outcomes = self.publisher.publish_each(&mut records).await;
        self.unanswered.clear();
        let mut stored = Vec::new();
        let (mut refused, mut lost, mut refusal) = (0, None, None);
        for (line, outcome) in numbers.into_iter().zip(outcomes) {
            match outcome {
                Ok(published) => stored.push(own_answer(published, false)),
                Err(PublishError::Lost(why)) => {
                    self.unanswered.push(line);
                    lost.get_or_insert(why);
                }
                Err(error) if error.is_permanent() => {
                    refused += 1;
                    self.bar.suspend(|| print_error(&format!("line {line}: {error}")));
                }
                Err(error) => {
                    self.not_stored.push(line);
                    refusal.get_or_insert(error);
                }
            }
        }
        self.published += stored.len() as u64;
        self.bar.set_message("");
        self.bar.set_position(self.published);
        if self.prints_json {
            let mut out = BufWriter::new(stdout());
            for published in &stored {
                writeln!(out, "{}", json_of(published)?)?;
            }
            out.flush()?;
        }
        let refusal = refusal.map(|error| format!("{} refused: {error}", line_ranges(&self.not_stored)));
        match (lost, refusal) {
            (Some(why), Some(refusal)) => bail!("{refusal}; the server did not answer: {why}"),
            (Some(why), None) => bail!("the server did not answer: {why}"),
            (None, Some(refusal)) => bail!(refusal),
            (None, None) if refused > 0 => bail!("{} refused", counted_were(refused)),
            (None, None) => Ok(()),
        }
    }

    fn how_to_continue(&self) -> String {
        how_to_continue(&self.not_stored, &self.unanswered, self.next_line)
    }
}

/// Which lines may be stored, and how to continue without losing one.
fn how_to_continue(not_stored: &[u64], unanswered: &[u64], next_line: u64) -> String {
    let refused = match not_stored {
        [] => String::new(),
        lines => format!("{}, and ", line_ranges(lines)),
    };
    let rest = format!("to continue, publish {refused}the input from line {next_line} on");
    if unanswered.is_empty() {
        return rest;
    }
    let lines = line_ranges(unanswered);
    format!(
        "no answer to {lines}: their events may be stored; {rest}; publish {lines} again only if a second copy of stored events does no \
         harm"
    )
}

/// `1 line was`, `2 lines were`.
fn counted_were(lines: u64) -> String {
    format!("{} {}", counted(lines, "line"), was(lines))
}

/// The numbers of lines, in order, as ranges: `line 3`, `lines 1-4, 7`.
fn line_ranges(lines: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for line in lines {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *line => *last = *line,
            _ => ranges.push((*line, *line)),
        }
    }
    let text = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let texts: Vec<String> = ranges.iter().map(text).collect();
    format!("{} {}", if lines.len() == 1 { "line" } else { "lines" }, texts.join(", "))
}

/// Waits for the answers of a chunk, also after a signal, so that the summary is true. A second signal does not wait. Returns the
/// signal, if there was one.
async fn send_or_stop(
    sending: impl Future<Output = anyhow::Result<()>>,
    signals: &mut Signals,
) -> anyhow::Result<Option<Stop>> {
    let mut sending = std::pin::pin!(sending);
    let mut stop = None;
    loop {
        tokio::select! {
            sent = &mut sending => return sent.map(|()| stop),
            signal = signals.next() => {
                if stop.replace(signal).is_some() {
                    return Ok(stop);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_named_by_ranges() {
        assert_eq!(line_ranges(&[3]), "line 3");
        assert_eq!(line_ranges(&[1, 2, 4, 5, 6, 9]), "lines 1-2, 4-6, 9");
    }

    #[test]
    fn the_advice_names_refused_lines_and_lines_without_an_answer() {
        assert_eq!(how_to_continue(&[], &[], 7), "to continue, publish the input from line 7 on");
        assert_eq!(
            how_to_continue(&[2], &[], 7),
            "to continue, publish line 2, and the input from line 7 on"
        );
        let mixed = how_to_continue(&[2, 3], &[4, 6], 7);
        assert!(mixed.starts_with("no answer to lines 4, 6: their events may be stored; "), "{mixed}");
        assert!(mixed.contains("to continue, publish lines 2-3, and the input from line 7 on"), "{mixed}");
        assert!(mixed.contains("publish lines 4, 6 again"), "{mixed}");
    }
}
