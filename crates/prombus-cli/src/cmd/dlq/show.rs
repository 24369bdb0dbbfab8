//! `prombus dlq show`.

use super::letters::{DlqEvent, Letter, LetterState, Letters};
use crate::args::DlqShowArgs;
use crate::cmd::server_client;
use crate::cmd::style::{escape_controls, escape_lines, put_line};
use crate::cmd::table::shortened;
use crate::messages::counted;
use crate::output::stdout;
use crate::time;
use std::collections::VecDeque;
use std::io::Write;

pub async fn show(args: &DlqShowArgs) -> anyhow::Result<()> {
    let client = server_client::client(&args.server)?;
    let mut letters = Letters::open(&client, &args.topic).await?;
    let mut newest = VecDeque::new();
    let (mut count, mut closed) = (0_u64, 0_u64);
    while let Some(found) = letters.next().await? {
        let DlqEvent::Letter(letter) = found else { continue };
        if args.group.as_ref().is_some_and(|group| letter.letter.group != *group) {
            continue;
        }
        if !args.all && letter.state != LetterState::Open {
            closed += 1;
            continue;
        }
        count += 1;
        newest.push_back(letter);
        if newest.len() > args.limit as usize {
            newest.pop_front();
        }
    }
    let mut out = stdout();
    for letter in &newest {
        if args.json {
            put_line(json_line(letter).as_bytes())?;
        } else {
            write!(out, "{}", escape_lines(&described(letter)))?;
        }
    }
    if !args.json {
        let (shown, topic) = (newest.len() as u64, &letters.states.topic);
        let kind = if args.all { "dead letter" } else { "open dead letter" };
        let mut more = String::new();
        if count > shown {
            more.push_str("; --limit shows more");
        }
        if closed > 0 {
            more.push_str(&format!("; --all also shows {closed} redriven or discarded"));
        }
        match count > shown {
            true => writeln!(out, "{shown} of {} in {topic}{more}", counted(count, kind))?,
            false => writeln!(out, "{} in {topic}{more}", counted(count, kind))?,
        }
    }
    Ok(())
}

/// The event of a letter as JSON, with its state.
fn json_line(letter: &Letter) -> String {
    let json = String::from_utf8_lossy(&letter.json);
    let json = json.trim_end();
    match json.strip_suffix('}') {
        Some(start) => format!("{start},\"state\":\"{}\"}}", letter.state),
        None => json.to_owned(),
    }
}

fn described(letter: &Letter) -> String {
    let Letter { id, ts, letter, state, .. } = letter;
    let original = &letter.original;
    let key =
        original.key.as_deref().map(|key| format!(", key {}", escape_controls(key))).unwrap_or_default();
    let subscription = match &letter.subscription {
        Some(subscription) if subscription != letter.topic.as_str() => format!(" on {subscription}"),
        _ => String::new(),
    };
    format!(
        "{}  {state:9}  {}{subscription} gave up after {}: {}\n  letter   {id}\n  original {} of {}, {}{key}\n  payload  {}\n",
        time::text(*ts),
        letter.group,
        counted(u64::from(letter.attempts), "attempt"),
        shortened(&letter.err, 200),
        original.id,
        original.topic,
        time::text(original.ts),
        shortened(original.payload.get(), 200),
    )
}
