//! `prombus dlq redrive`: publishes dead-lettered events again.

use super::letters::{Letter, dead_letter_topic, next_letter};
use crate::args::{RedriveArgs, filter};
use crate::cmd::republish::Republisher;
use crate::cmd::{progress, replay, server_client};
use crate::messages::{one_line, print_error};
use prombus_client::{Client, EventRecord, History, HistoryQuery, Record, Uuid};
use std::io::{Write, stdout};
use std::process::ExitCode;

/// The header that counts how often an event was redriven.
const REDRIVES: &str = "x-redrives";
/// How many events a dry run prints.
const SHOWN: u64 = 5;

/// Events that were skipped.
#[derive(Default)]
struct Skipped {
    /// Dead letters whose event was already redriven `--max-redrives` times.
    exhausted: u64,
    /// Events that are not dead letters.
    others: u64,
}

pub async fn redrive(args: &RedriveArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let topic = server_client::known_topic(&client, &dead_letter_topic(&args.topic)).await?;
    let query = HistoryQuery { to_seq: Some(topic.last_seq), ..HistoryQuery::default() };
    let history = client.history(&topic.topic, query);
    if args.yes {
        client.open().await?;
        publish(args, client, history, topic.count).await
    } else {
        dry_run(args, history).await
    }
}

async fn dry_run(args: &RedriveArgs, mut history: History) -> anyhow::Result<ExitCode> {
    let mut out = stdout();
    let (mut count, mut skipped) = (0, Skipped::default());
    while let Some(letter) = next_selected(args, &mut history, &mut skipped).await? {
        count += 1;
        if count <= SHOWN {
            let original = &letter.letter.original;
            writeln!(out, "{}  {}", original.topic, replay::line_of(original))?;
        }
        if args.limit == Some(count) {
            break;
        }
    }
    if count > SHOWN {
        writeln!(out, "… and {} more", count - SHOWN)?;
    }
    writeln!(out, "{count} events would be published again{}", skipped.text(args))?;
    writeln!(
        out,
        "nothing was published; --yes publishes the events (dead letters that were redriven before are skipped)"
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn publish(
    args: &RedriveArgs,
    client: Client,
    mut history: History,
    total: u64,
) -> anyhow::Result<ExitCode> {
    let bar = progress::events(total);
    let mut copies = Republisher::new(client, Some(args.rate), args.limit, &bar);
    let mut skipped = Skipped::default();
    let redriven: anyhow::Result<()> = async {
        while let Some(letter) = next_selected(args, &mut history, &mut skipped).await? {
            bar.inc(1);
            copies.add(record_of(&letter)).await?;
            if copies.is_done() {
                break;
            }
        }
        copies.flush().await
    }
    .await;
    bar.finish_and_clear();
    let Republisher { published, duplicates, .. } = copies;
    writeln!(
        stdout(),
        "{published} events published again; {duplicates} had been redriven before and were skipped{}",
        skipped.text(args)
    )?;
    if let Err(error) = redriven {
        print_error(&one_line(&error));
        print_error(
            "to continue, run the command again: events that were already redriven are not published twice",
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The next dead letter that the arguments select.
async fn next_selected(
    args: &RedriveArgs,
    history: &mut History,
    skipped: &mut Skipped,
) -> anyhow::Result<Option<Letter>> {
    while let Some(found) = next_letter(history).await? {
        let Some(letter) = found else {
            skipped.others += 1;
            continue;
        };
        let is_selected = args.group.as_ref().is_none_or(|group| letter.letter.group == *group)
            && args.error_contains.as_ref().is_none_or(|text| letter.letter.err.contains(text))
            && filter::matches(&args.filters, &letter.letter.original);
        if !is_selected {
            continue;
        }
        if redrives_of(&letter.letter.original) >= u64::from(args.max_redrives) {
            skipped.exhausted += 1;
            continue;
        }
        return Ok(Some(letter));
    }
    Ok(None)
}

/// How often the event was redriven, according to its header.
fn redrives_of(event: &EventRecord) -> u64 {
    event.headers.get(REDRIVES).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The event to publish. Its id is derived from the dead letter's id, so that redriving a dead letter twice adds only one event.
fn record_of(letter: &Letter) -> Record {
    let original = &letter.letter.original;
    let mut record = Record::copy_of(original, original.topic.as_str());
    record.options.id = Some(Uuid::new_v5(&letter.id, b"redrive"));
    record.options.headers.insert(REDRIVES.to_owned(), (redrives_of(original) + 1).to_string());
    record
}

impl Skipped {
    fn text(&self, args: &RedriveArgs) -> String {
        let mut text = String::new();
        if self.exhausted > 0 {
            text.push_str(&format!(
                "; {} skipped, because they were redriven {} times (--max-redrives)",
                self.exhausted, args.max_redrives
            ));
        }
        if self.others > 0 {
            text.push_str(&format!("; {} skipped, because they are not dead letters", self.others));
        }
        text
    }
}
