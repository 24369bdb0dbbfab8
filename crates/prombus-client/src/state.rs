//! Loads the newest event of each key of a topic, and the position from which to continue.

use crate::client::Client;
use crate::error::ClientError;
use prombus_protocol::{EventRecord, Start, Uuid};
use std::collections::BTreeMap;

/// An event's position in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The id of the event.
    pub id: Uuid,
    /// The seq of the event.
    pub seq: u64,
}

/// The state of a topic: the newest event of each key that is not deleted.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The events by key.
    pub events: BTreeMap<String, EventRecord>,
    /// The event up to which the state is complete; `None` if the topic has no events.
    pub position: Option<Position>,
}

impl State {
    /// The `from` of a new group that starts with the first event after this state.
    pub fn start(&self) -> Start {
        self.position.map_or(Start::Earliest, |position| Start::AfterId(position.id))
    }
}

impl Client {
    /// Loads the newest event of each key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn load_state(&self, topic: &str) -> Result<State, ClientError> {
        let path = Self::path(&["state", topic], &[("ndjson", "1")]);
        let mut lines = self.lines(&path).await?;
        let header = |name: &str| lines.header(name).map(str::to_owned);
        let position = match (header("x-position-id"), header("x-position-seq")) {
            (Some(id), Some(seq)) => {
                let id = id.parse().map_err(|_| self.invalid_response(format!("x-position-id: {id:?}")))?;
                let seq =
                    seq.parse().map_err(|_| self.invalid_response(format!("x-position-seq: {seq:?}")))?;
                Some(Position { id, seq })
            }
            _ => None,
        };
        let mut events = BTreeMap::new();
        while let Some(line) = lines.next().await? {
            let event: EventRecord = serde_json::from_slice(&line)
                .map_err(|error| self.invalid_response(format!("invalid event: {error}")))?;
            if let Some(key) = event.key.clone() {
                events.insert(key, event);
            }
        }
        Ok(State { events, position })
    }
}
