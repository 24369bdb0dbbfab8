//! `prombus dlq`: dead letters, what is there and publishing it again.

mod redrive;
mod show;

use crate::args::DlqCommand;
use prombus_client::{DeadLetter, History};
use std::process::ExitCode;

/// What names of topics with dead letters begin with.
const PREFIX: &str = "dlq.";

/// Runs the command.
///
/// # Errors
/// When the server does not let it.
pub fn run(command: &DlqCommand) -> anyhow::Result<ExitCode> {
    use super::remote::block_on;
    match command {
        DlqCommand::List(args) => block_on(show::list(args))?,
        DlqCommand::Show(args) => block_on(show::show(args))?,
        DlqCommand::Redrive(args) => return block_on(redrive::redrive(args)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The topic of letters, however it was named.
fn letters_of(topic: &str) -> String {
    if topic.starts_with(PREFIX) { topic.to_owned() } else { format!("{PREFIX}{topic}") }
}

/// A dead letter and its own place.
struct Letter {
    id: prombus_client::Uuid,
    ts: i64,
    /// The whole event, as it came.
    json: bytes::Bytes,
    letter: DeadLetter,
}

/// The next event: a letter, or something else that somebody published there.
async fn next_letter(history: &mut History) -> anyhow::Result<Option<Option<Letter>>> {
    let Some(found) = history.next().await? else { return Ok(None) };
    let letter = serde_json::from_str(found.event.payload.get()).ok();
    Ok(Some(letter.map(|letter| Letter { id: found.event.id, ts: found.event.ts, json: found.json, letter })))
}
