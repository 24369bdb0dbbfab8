//! `prombus replay`: copies events of a topic or pattern to another topic.

use super::republish::Republisher;
use super::table::shortened;
use super::{progress, server_client};
use crate::args::{ReplayArgs, filter};
use crate::messages::{counted, one_line, print_error, was};
use crate::output::stdout;
use crate::wrong_arguments::WrongArguments;
use prombus_client::{Addressee, Client, EventRecord, History, HistoryQuery, Record, Uuid};
use prombus_protocol::Pattern;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// How many events a dry run prints.
const SHOWN: u64 = 5;

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or cannot be reached.
pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(replay(args))
}

async fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    prombus_protocol::check_topic(&args.to).map_err(WrongArguments::new)?;
    let pattern = Pattern::new(&args.from).map_err(WrongArguments::new)?;
    if pattern.matches(&args.to) {
        let to = if args.from == args.to { "itself" } else { &args.to };
        let why = format!("a replay of {} to {to} would have no end; choose another target topic", args.from);
        return Err(WrongArguments::new(why).into());
    }
    let client = server_client::client(&args.server)?;
    let topic = server_client::known_topics(&client, &args.from).await?;
    let query = HistoryQuery {
        from_ts: args.times.from_ts,
        to_ts: args.times.to_ts,
        to_seq: topic.as_ref().map(|topic| topic.last_seq),
        last: args.last,
        ..HistoryQuery::default()
    };
    let history = client.history(&args.from, query).filter(filter::for_server(&args.filter.filters));
    if args.dry_run {
        return dry_run(args, history).await;
    }
    client.open().await?;
    copy(args, client, history, topic.map_or(0, |topic| topic.count)).await
}

async fn dry_run(args: &ReplayArgs, mut history: History) -> anyhow::Result<ExitCode> {
    let mut out = stdout();
    let (mut count, mut not_for_target) = (0, 0);
    while let Some(found) = history.next().await? {
        if !filter::matches(&args.filter.filters, &found.event) {
            continue;
        }
        if !is_for(&found.event, &args.to) {
            not_for_target += 1;
            continue;
        }
        count += 1;
        if count <= SHOWN && !args.json.json {
            writeln!(out, "{}", line_of(&found.event))?;
        }
        if args.limit == Some(count) {
            break;
        }
    }
    if args.json.json {
        let json = json!({
            "from": args.from, "to": args.to, "dry_run": true, "events": count, "not_for_target": not_for_target,
        });
        writeln!(out, "{json}")?;
        return Ok(ExitCode::SUCCESS);
    }
    if count > SHOWN {
        writeln!(out, "… and {} more", count - SHOWN)?;
    }
    writeln!(
        out,
        "{} of {} would be published to {}{}; nothing was published",
        counted(count, "event"),
        args.from,
        args.to,
        left_out(not_for_target, &args.to)
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn copy(
    args: &ReplayArgs,
    client: Client,
    mut history: History,
    total: u64,
) -> anyhow::Result<ExitCode> {
    let bar = progress::events(total);
    // The limit counts duplicates too, so that a dry run, which cannot recognise them, selects the same events.
    let mut copies = Republisher::new(client, args.rate, &bar);
    let (mut count, mut not_for_target) = (0, 0);
    let copied: anyhow::Result<()> = async {
        while let Some(found) = history.next().await? {
            bar.inc(1);
            if !filter::matches(&args.filter.filters, &found.event) {
                continue;
            }
            if !is_for(&found.event, &args.to) {
                not_for_target += 1;
                continue;
            }
            let mut record = Record::copy_of(&found.event, &args.to);
            if args.new_ids {
                record.options.id = Some(Uuid::now_v7());
            }
            copies.add(record).await?;
            count += 1;
            if args.limit == Some(count) {
                break;
            }
        }
        copies.flush().await
    }
    .await;
    bar.finish_and_clear();
    let Republisher { published, duplicates, refused, .. } = copies;
    let text = match args.json.json {
        true => json!({
            "from": args.from, "to": args.to, "published": published, "duplicates": duplicates,
            "not_for_target": not_for_target, "refused": refused.values().sum::<u64>(),
        })
        .to_string(),
        false => format!(
            "{} of {} published to {}, {duplicates} {} already there{}",
            counted(published, "event"),
            args.from,
            args.to,
            was(duplicates),
            left_out(not_for_target, &args.to)
        ),
    };
    writeln!(stdout(), "{text}")?;
    for (why, count) in &refused {
        print_error(&format!("{} for one group {} not copied: {why}", counted(*count, "event"), was(*count)));
    }
    if let Err(error) = copied {
        print_error(&one_line(&error));
        print_error(match args.new_ids {
            true => "running the command again publishes all events again, because of --new-ids",
            false => {
                "to continue, run the command again: events that were already copied are not added twice"
            }
        });
        return Ok(ExitCode::FAILURE);
    }
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the target topic may have the event: an event for one group is only for topics that this group reads. Its original, of which it
/// is a repetition, is copied all the same.
fn is_for(event: &EventRecord, topic: &str) -> bool {
    event.addressee.as_ref().is_none_or(|addressee| covers(addressee, topic))
}

/// Whether the subscription of a group covers a topic.
pub fn covers(addressee: &Addressee, topic: &str) -> bool {
    Pattern::new(&addressee.subscription).is_ok_and(|pattern| pattern.matches(topic))
}

fn left_out(count: u64, topic: &str) -> String {
    match count {
        0 => String::new(),
        _ => format!("; {} for groups that do not read {topic} left out", counted(count, "event")),
    }
}

/// A summary of an event in one line.
pub fn line_of(event: &EventRecord) -> String {
    let key = event.key.as_deref().unwrap_or("-");
    format!("{}  {}  {}", event.id, shortened(key, 24), shortened(event.payload.get(), 80))
}
