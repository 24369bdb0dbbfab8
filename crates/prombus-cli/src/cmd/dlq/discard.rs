//! `prombus dlq discard`: marks dead letters as discarded.

use super::letters::{DlqEvent, LetterState, Letters, close, is_selected, selects_all};
use crate::args::DiscardArgs;
use crate::cmd::server_client;
use crate::messages::{counted, print_error};
use crate::output::stdout;
use prombus_client::Uuid;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

/// Maximum number of letters in one request.
const CHUNK_LETTERS: usize = 500;

/// The selected events.
#[derive(Default)]
struct Selected {
    /// The ids of open events.
    open: Vec<Uuid>,
    /// How many of the open events are not dead letters.
    others: u64,
    /// The number of events that had been redriven or discarded before.
    closed: u64,
    /// The ids in the arguments that the topic does not have.
    unknown: BTreeSet<Uuid>,
}

pub async fn discard(args: &DiscardArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let mut letters = Letters::open(&client, &args.topic).await?;
    let selected = select(args, &mut letters).await?;
    let topic = &letters.states.topic;
    if args.yes {
        for chunk in selected.open.chunks(CHUNK_LETTERS) {
            close(&client, topic, chunk, LetterState::Discarded).await?;
        }
    }
    if args.json.json {
        let json = json!({
            "topic": topic,
            "dry_run": !args.yes,
            "discarded": selected.open.len(),
            "others": selected.others,
            "closed_before": selected.closed,
            "unknown": selected.unknown,
        });
        writeln!(stdout(), "{json}")?;
    } else {
        print(args, topic, &selected)?;
    }
    for id in &selected.unknown {
        print_error(&format!("{topic} has no event with the id {id}"));
    }
    Ok(if selected.unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn select(args: &DiscardArgs, letters: &mut Letters) -> anyhow::Result<Selected> {
    let mut selected = Selected { unknown: args.ids.iter().copied().collect(), ..Selected::default() };
    while let Some(found) = letters.next().await? {
        let (id, state, is_selected) = match &found {
            DlqEvent::Letter(letter) => {
                (letter.id, letter.state, is_selected(&args.selection, &letter.letter))
            }
            DlqEvent::Other { id, state } => (*id, *state, selects_all(&args.selection)),
        };
        let is_named = args.ids.is_empty() || selected.unknown.remove(&id);
        if !is_named || !is_selected {
            continue;
        }
        match state {
            LetterState::Open => {
                selected.open.push(id);
                selected.others += u64::from(matches!(found, DlqEvent::Other { .. }));
            }
            LetterState::Redriven | LetterState::Discarded => selected.closed += 1,
        }
    }
    Ok(selected)
}

fn print(args: &DiscardArgs, topic: &str, selected: &Selected) -> anyhow::Result<()> {
    let letters = selected.open.len() as u64 - selected.others;
    let others = match selected.others {
        0 => String::new(),
        count => format!(" and {}", counted(count, "other event")),
    };
    if args.yes {
        writeln!(stdout(), "{}{others} discarded in {topic}", counted(letters, "dead letter"))?;
    } else {
        let letters = counted(letters, "open dead letter");
        writeln!(stdout(), "{letters}{others} in {topic} would be discarded")?;
        writeln!(stdout(), "nothing was discarded; --yes discards them")?;
    }
    if selected.closed > 0 && !args.ids.is_empty() {
        writeln!(stdout(), "{} had been redriven or discarded before", selected.closed)?;
    }
    Ok(())
}
