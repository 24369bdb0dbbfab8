//! `prombus dlq discard`: marks dead letters as discarded.

use super::letters::{LetterState, Letters, close, counted, is_selected};
use crate::args::DiscardArgs;
use crate::cmd::server_client;
use crate::messages::print_error;
use prombus_client::Uuid;
use std::collections::BTreeSet;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Maximum number of letters in one request.
const CHUNK_LETTERS: usize = 500;

pub async fn discard(args: &DiscardArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let mut letters = Letters::open(&client, &args.topic).await?;
    let mut wanted: BTreeSet<Uuid> = args.ids.iter().copied().collect();
    let (mut ids, mut closed) = (Vec::new(), 0_u64);
    while let Some(found) = letters.next().await? {
        let Some(letter) = found else { continue };
        let is_named = args.ids.is_empty() || wanted.remove(&letter.id);
        if !is_named || !is_selected(&args.selection, &letter.letter) {
            continue;
        }
        match letter.state {
            LetterState::Open => ids.push(letter.id),
            LetterState::Redriven | LetterState::Discarded => closed += 1,
        }
    }
    let topic = &letters.states.topic;
    let count = ids.len() as u64;
    if args.yes {
        for chunk in ids.chunks(CHUNK_LETTERS) {
            close(&client, topic, chunk, LetterState::Discarded).await?;
        }
        writeln!(stdout(), "{} discarded in {topic}", counted(count, "dead letter"))?;
    } else {
        writeln!(stdout(), "{} in {topic} would be discarded", counted(count, "open dead letter"))?;
        writeln!(stdout(), "nothing was discarded; --yes discards them")?;
    }
    if closed > 0 && !args.ids.is_empty() {
        writeln!(stdout(), "{closed} had been redriven or discarded before")?;
    }
    for id in &wanted {
        print_error(&format!("{topic} has no dead letter with the id {id}"));
    }
    Ok(if wanted.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
