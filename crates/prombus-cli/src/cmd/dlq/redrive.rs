//! `prombus dlq redrive`: publishes dead-lettered events again.

use super::letters::{DlqEvent, Letter, LetterState, Letters, is_selected};
use super::redriver::Redriver;
use crate::args::RedriveArgs;
use crate::cmd::style::escape_controls;
use crate::cmd::{progress, replay, server_client};
use crate::messages::{counted, one_line, print_error};
use crate::output::stdout;
use prombus_client::{Addressee, Client, EventRecord, Record, Uuid};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// The header that counts how often an event was redriven.
const REDRIVES: &str = "x-redrives";
/// How many events a dry run prints.
const SHOWN: u64 = 5;

/// Events that were skipped.
#[derive(Default, Serialize)]
struct Skipped {
    /// Dead letters whose event was already redriven `--max-redrives` times.
    exhausted: u64,
    /// Open events that are not dead letters of this topic.
    others: u64,
    /// Dead letters that do not name the subscription of their group.
    without_subscription: u64,
}

pub async fn redrive(args: &RedriveArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let letters = Letters::open(&client, &args.topic).await?;
    if args.yes {
        client.open().await?;
        publish(args, client, letters).await
    } else {
        dry_run(args, letters).await
    }
}

async fn dry_run(args: &RedriveArgs, mut letters: Letters) -> anyhow::Result<ExitCode> {
    let mut out = stdout();
    let (mut count, mut skipped) = (0, Skipped::default());
    while let Some((letter, addressee)) = next_selected(args, &mut letters, &mut skipped).await? {
        count += 1;
        if count <= SHOWN && !args.json.json {
            let original = &letter.letter.original;
            let to = addressee.map(|it| format!("  to {}", it.group)).unwrap_or_default();
            writeln!(out, "{}  {}{}", original.topic, replay::line_of(original), escape_controls(&to))?;
        }
        if args.limit == Some(count) {
            break;
        }
    }
    if args.json.json {
        let json = json!({
            "topic": letters.states.topic, "dry_run": true, "events": count, "skipped": skipped,
        });
        writeln!(out, "{json}")?;
        return Ok(skipped.exit_code());
    }
    if count > SHOWN {
        writeln!(out, "… and {} more", count - SHOWN)?;
    }
    writeln!(out, "{} would be published again{}", counted(count, "event"), skipped.text(args))?;
    let whom = if args.all_groups { "all groups of the topic" } else { "the group that gave them up" };
    writeln!(out, "nothing was published; --yes publishes the events to {whom}")?;
    Ok(skipped.exit_code())
}

async fn publish(args: &RedriveArgs, client: Client, mut letters: Letters) -> anyhow::Result<ExitCode> {
    let bar = progress::events(letters.states.open);
    let topic = letters.states.topic.clone();
    let mut redriver = Redriver::new(client, topic, args.rate, args.limit, &bar);
    let mut skipped = Skipped::default();
    let redriven: anyhow::Result<()> = async {
        while let Some((letter, addressee)) = next_selected(args, &mut letters, &mut skipped).await? {
            bar.inc(1);
            redriver.add(letter.id, record_of(&letter, addressee)).await?;
            if redriver.is_done() {
                break;
            }
        }
        redriver.flush().await
    }
    .await;
    bar.finish_and_clear();
    if args.json.json {
        let mut json = redriver.as_json();
        json["skipped"] = json!(skipped);
        writeln!(stdout(), "{json}")?;
    } else {
        let mut result = format!("{} published again", counted(redriver.published, "event"));
        if redriver.duplicates > 0 {
            result.push_str(&format!("; {} had been published before", redriver.duplicates));
        }
        writeln!(stdout(), "{result}{}", skipped.text(args))?;
    }
    redriver.print_problems();
    if let Err(error) = redriven {
        print_error(&one_line(&error));
        print_error(
            "to continue, run the command again: events that were already redriven are not published twice",
        );
        return Ok(ExitCode::FAILURE);
    }
    if skipped.without_subscription > 0 {
        print_error(
            "dead letters of older versions do not name the subscription of their group: name it with --subscription, or use --all-groups",
        );
    }
    Ok(if redriver.has_problems() { ExitCode::FAILURE } else { skipped.exit_code() })
}

/// The next open dead letter that the arguments select, and the group that its event is published to; `None` for all groups.
async fn next_selected(
    args: &RedriveArgs,
    letters: &mut Letters,
    skipped: &mut Skipped,
) -> anyhow::Result<Option<(Letter, Option<Addressee>)>> {
    while let Some(found) = letters.next().await? {
        let letter = match found {
            DlqEvent::Letter(letter) => letter,
            DlqEvent::Other { state, .. } => {
                skipped.others += u64::from(state == LetterState::Open);
                continue;
            }
        };
        if letter.state != LetterState::Open || !is_selected(&args.selection, &letter.letter) {
            continue;
        }
        // A token that may publish here but not to other topics must not reach them through an admin who redrives.
        if letter.letter.original.topic.dead_letter().as_str() != letters.states.topic {
            skipped.others += 1;
            continue;
        }
        if redrives_of(&letter.letter.original) >= u64::from(args.max_redrives) {
            skipped.exhausted += 1;
            continue;
        }
        if args.all_groups {
            return Ok(Some((letter, None)));
        }
        let Some(subscription) = letter.letter.subscription.as_ref().or(args.subscription.as_ref()) else {
            skipped.without_subscription += 1;
            continue;
        };
        let addressee = Addressee::new(subscription, &letter.letter.group);
        return Ok(Some((letter, Some(addressee))));
    }
    Ok(None)
}

/// How often the event was redriven, according to its header.
fn redrives_of(event: &EventRecord) -> u64 {
    event.headers.get(REDRIVES).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The event to publish. Its id is derived from the dead letter and the addressee, so that redriving a dead letter twice adds only one
/// event. Redrives to different groups, or to all groups, have different ids: one must not pass for the other. The time at which the
/// group gave the event up is part of the id, because a dead letter of a later failure can have the same id as an earlier one if the
/// dead-letter topic was deleted in between. A dead letter of an older version, which does not name a subscription, has one id: that
/// version may have redriven it without recording it.
fn record_of(letter: &Letter, addressee: Option<Addressee>) -> Record {
    let original = &letter.letter.original;
    let mut record = Record::copy_of(original, original.topic.as_str());
    let name = match (&addressee, &letter.letter.subscription) {
        (Some(Addressee { subscription, group }), Some(_)) => {
            format!("redrive to group {group:?} on {subscription:?} of {}", letter.letter.ts)
        }
        (None, Some(_)) => format!("redrive of {}", letter.letter.ts),
        (_, None) => "redrive".to_owned(),
    };
    record.options.id = Some(Uuid::new_v5(&letter.id, name.as_bytes()));
    record.options.headers.insert(REDRIVES.to_owned(), (redrives_of(original) + 1).to_string());
    record.options.addressee = addressee;
    record
}

impl Skipped {
    fn text(&self, args: &RedriveArgs) -> String {
        let mut text = String::new();
        let mut add = |count: u64, why: String| {
            if count > 0 {
                text.push_str(&format!("; {count} skipped, because {why}"));
            }
        };
        add(self.exhausted, format!("they were redriven {} times (--max-redrives)", args.max_redrives));
        add(self.others, "they are not dead letters of this topic".to_owned());
        add(self.without_subscription, "they need --subscription or --all-groups".to_owned());
        text
    }

    fn exit_code(&self) -> ExitCode {
        if self.without_subscription > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrive_has_an_id_of_its_own_for_each_addressee() {
        let text = r#"{"topic":"a","group":"g","subscription":"a","err":"x","attempts":1,"ts":1,
            "original":{"id":"0196f1d0-0000-7000-8000-000000000001","ts":5,"topic":"a","payload":1}}"#;
        let mut letter = Letter {
            id: Uuid::from_u128(7),
            ts: 5,
            json: bytes::Bytes::new(),
            letter: serde_json::from_str(text).unwrap(),
            state: LetterState::Open,
        };
        let id = |letter: &Letter, addressee| record_of(letter, addressee).options.id.unwrap();
        let to = |subscription: &str, group: &str| id(&letter, Some(Addressee::new(subscription, group)));
        assert_eq!(to("a", "g"), to("a", "g"));
        assert_ne!(to("a", "g"), to("a.*", "g"));
        assert_ne!(to("a", "g"), to("a", "h"));
        assert_ne!(to("a", "g"), id(&letter, None));
        let [to_one, to_all] = [to("a", "g"), id(&letter, None)];
        letter.letter.ts = 2;
        let again = [id(&letter, Some(Addressee::new("a", "g"))), id(&letter, None)];
        assert!(again[0] != to_one && again[1] != to_all, "of a later failure");
        letter.letter.subscription = None;
        let of_older_version = Uuid::new_v5(&letter.id, b"redrive");
        assert_eq!(id(&letter, Some(Addressee::new("a", "g"))), of_older_version);
        assert_eq!(id(&letter, None), of_older_version);
    }
}
