//! Dead letters as they are read from their topics.

use prombus_client::{DeadLetter, History, Uuid};
use prombus_protocol::DEAD_LETTER_PREFIX;

/// The topic of letters, however it was named.
pub fn letters_of(topic: &str) -> String {
    if topic.starts_with(DEAD_LETTER_PREFIX) {
        topic.to_owned()
    } else {
        format!("{DEAD_LETTER_PREFIX}{topic}")
    }
}

/// A dead letter and its own place.
pub struct Letter {
    pub id: Uuid,
    pub ts: i64,
    /// The whole event, as it came.
    pub json: bytes::Bytes,
    pub letter: DeadLetter,
}

/// The next event: a letter, or something else that somebody published there.
pub async fn next_letter(history: &mut History) -> anyhow::Result<Option<Option<Letter>>> {
    let Some(found) = history.next().await? else { return Ok(None) };
    let letter = serde_json::from_str(found.event.payload.get()).ok();
    Ok(Some(letter.map(|letter| Letter { id: found.event.id, ts: found.event.ts, json: found.json, letter })))
}
