//! Publishing again what groups gave up.

use super::letters::{Letter, letters_of, next_letter};
use crate::args::{RedriveArgs, filter};
use crate::cmd::republish::Republisher;
use crate::cmd::{progress, replay, server_client};
use crate::messages::{one_line, print_error};
use prombus_client::{Client, EventRecord, History, HistoryQuery, Record, Uuid};
use std::io::{Write, stdout};
use std::process::ExitCode;

/// How often an event was redriven; a header.
const REDRIVES: &str = "x-redrives";
/// So many are shown when nothing is published.
const SHOWN: u64 = 5;

/// What was found beside what goes.
#[derive(Default)]
struct Left {
    /// Redriven too often.
    alone: u64,
    /// No dead letters.
    others: u64,
}

pub async fn redrive(args: &RedriveArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let topic = server_client::known_topic(&client, &letters_of(&args.topic)).await?;
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
    let (mut count, mut left) = (0, Left::default());
    while let Some(letter) = next_wanted(args, &mut history, &mut left).await? {
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
    writeln!(out, "{count} events would be published again{}", left.text(args))?;
    writeln!(out, "nothing was published; --yes does it (what was redriven before is not published twice)")?;
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
    let mut left = Left::default();
    let redriven: anyhow::Result<()> = async {
        while let Some(letter) = next_wanted(args, &mut history, &mut left).await? {
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
        "{published} events published again, {duplicates} were redriven before{}",
        left.text(args)
    )?;
    if let Err(error) = redriven {
        print_error(&one_line(&error));
        print_error("to go on, run it again: what was redriven is not published twice");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The next letter that is to be redriven.
async fn next_wanted(
    args: &RedriveArgs,
    history: &mut History,
    left: &mut Left,
) -> anyhow::Result<Option<Letter>> {
    while let Some(found) = next_letter(history).await? {
        let Some(letter) = found else {
            left.others += 1;
            continue;
        };
        let is_meant = args.group.as_ref().is_none_or(|group| letter.letter.group == *group)
            && args.error_contains.as_ref().is_none_or(|text| letter.letter.err.contains(text))
            && filter::matches(&args.filters, &letter.letter.original);
        if !is_meant {
            continue;
        }
        if redrives_of(&letter.letter.original) >= u64::from(args.max_redrives) {
            left.alone += 1;
            continue;
        }
        return Ok(Some(letter));
    }
    Ok(None)
}

/// How often an event was redriven before.
fn redrives_of(event: &EventRecord) -> u64 {
    event.headers.get(REDRIVES).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The event, once more. Its id is made from the letter's: a letter makes one event, however often it is redriven.
fn record_of(letter: &Letter) -> Record {
    let original = &letter.letter.original;
    let mut record = Record::copy_of(original, original.topic.as_str());
    record.options.id = Some(Uuid::new_v5(&letter.id, b"redrive"));
    record.options.headers.insert(REDRIVES.to_owned(), (redrives_of(original) + 1).to_string());
    record
}

impl Left {
    fn text(&self, args: &RedriveArgs) -> String {
        let mut text = String::new();
        if self.alone > 0 {
            text.push_str(&format!(
                ", {} left alone: redriven {} times already (--max-redrives)",
                self.alone, args.max_redrives
            ));
        }
        if self.others > 0 {
            text.push_str(&format!(", {} events that are no dead letters passed over", self.others));
        }
        text
    }
}
