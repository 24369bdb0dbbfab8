//! Reads dead letters from their topics.

use prombus_client::{DeadLetter, History, Uuid};
use prombus_protocol::DEAD_LETTER_PREFIX;

/// The dead-letter topic of `topic`, which may be given with or without its prefix.
pub fn dead_letter_topic(topic: &str) -> String {
    if topic.starts_with(DEAD_LETTER_PREFIX) {
        topic.to_owned()
    } else {
        format!("{DEAD_LETTER_PREFIX}{topic}")
    }
}

/// A dead letter, and the event that contains it.
pub struct Letter {
    /// The id of the event that contains the dead letter.
    pub id: Uuid,
    /// The `ts` of that event.
    pub ts: i64,
    /// That event as received, in JSON.
    pub json: bytes::Bytes,
    pub letter: DeadLetter,
}

/// Reads the next event. `None` is the end; `Some(None)` is an event that is not a dead letter.
pub async fn next_letter(history: &mut History) -> anyhow::Result<Option<Option<Letter>>> {
    let Some(found) = history.next().await? else { return Ok(None) };
    let letter = serde_json::from_str(found.event.payload.get()).ok();
    Ok(Some(letter.map(|letter| Letter { id: found.event.id, ts: found.event.ts, json: found.json, letter })))
}
