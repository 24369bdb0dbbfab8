//! The changes of a topic's state, as they are published.

use super::print::Printer;
use crate::args::StateArgs;
use crate::messages::print_error;
use prombus_client::{After, Client, EventRecord, Filter, Follow, Start, Uuid};
use serde::Deserialize;

/// The event up to which a state is complete.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Position {
    pub id: Uuid,
    pub seq: u64,
}

/// Opens the stream of changes after a position. `None` is the position before the first event. The commands open it before they print
/// anything: if the server cannot be reached, they fail at once, and from then on a lost connection is restored.
pub async fn open(client: &Client, args: &StateArgs, position: Option<Position>) -> anyhow::Result<Follow> {
    let filter = Filter { key: args.key.clone(), ..Filter::default() };
    let stream = match position {
        Some(Position { id, seq }) => {
            client.follow_after(&args.topic, After { id, seq: Some(seq) }, filter).await?
        }
        None => client.follow(&args.topic, Start::Earliest, filter).await?,
    };
    Ok(stream.on_lost(|error| print_error(&format!("{error}; reconnecting"))))
}

/// Prints the changes of a stream that was opened at `position`, until interrupted. Changes up to `known_seq` are printed already.
pub async fn print(
    mut stream: Follow,
    position: Option<Position>,
    known_seq: u64,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mut known_seqs = Some(position.map_or(0, |position| position.seq) + 1..=known_seq);
    loop {
        let found = stream.next().await?;
        if known_seqs.as_ref().is_some_and(|seqs| seqs.contains(&found.event.seq)) {
            continue;
        }
        // A topic that is deleted and created again has the same seqs a second time.
        known_seqs = None;
        if is_change(&found.event) {
            printer.change(&found.json, &found.event)?;
        }
    }
}

/// Whether an event changes the state. The state ignores events without a key, and copies of redriven events for one group.
fn is_change(event: &EventRecord) -> bool {
    event.key.is_some() && event.addressee.is_none()
}
