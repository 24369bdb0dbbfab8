//! Reads dead letters from their topics, with their states, and closes them.

use crate::args::{LetterSelection, filter};
use crate::messages::{one_line, print_error};
use anyhow::bail;
use prombus_client::{Client, ClientError, DeadLetter, History, HistoryQuery, Uuid};
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::time::{Duration, Instant};

/// How long letters are marked again and again while the server cannot be reached.
const PATIENCE: Duration = Duration::from_secs(60);
/// The waits between these attempts: each is twice as long as the previous one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Whether a dead letter was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterState {
    Open,
    Redriven,
    Discarded,
}

impl LetterState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for LetterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` applies the width.
        f.pad(self.as_str())
    }
}

/// The states of the letters of a dead-letter topic, as the server reports them.
#[derive(Debug, Deserialize)]
pub struct LetterStates {
    pub topic: String,
    last_seq: u64,
    pub open: u64,
    /// Ranges of seqs, both ends included.
    redriven: Vec<(u64, u64)>,
    discarded: Vec<(u64, u64)>,
    /// Where the next page begins, if there is one. Older servers send everything at once.
    #[serde(default)]
    next: Option<u64>,
}

impl LetterStates {
    /// The states of the letters of a topic, which may be given with or without the prefix.
    pub async fn of(client: &Client, topic: &str) -> anyhow::Result<Self> {
        let mut states = Self::page(client, topic, None).await?;
        while let Some(next) = states.next {
            let later = Self::page(client, topic, Some(next)).await?;
            // Letters that arrived since the first page are not part of the result.
            states.redriven.extend(later.redriven);
            states.discarded.extend(later.discarded);
            states.next = later.next;
        }
        Ok(states)
    }

    async fn page(client: &Client, topic: &str, from_seq: Option<u64>) -> anyhow::Result<Self> {
        let from_seq = from_seq.map(|seq| seq.to_string());
        let query: Vec<(&str, &str)> = from_seq.iter().map(|seq| ("fromSeq", seq.as_str())).collect();
        match client.get_json(&Client::path(&["dead-letters", topic], &query)).await {
            Ok(states) => Ok(states),
            Err(ClientError::Refused { status: Some(404), .. }) => {
                let name = topic.strip_prefix(prombus_protocol::DEAD_LETTER_PREFIX).unwrap_or(topic);
                bail!("{name:?} has no dead letters; `prombus dlq list` lists the topics that have some")
            }
            Err(error) => Err(error.into()),
        }
    }

    fn state(&self, seq: u64) -> LetterState {
        let is_in = |ranges: &[(u64, u64)]| {
            let at = ranges.partition_point(|&(_, last)| last < seq);
            ranges.get(at).is_some_and(|&(first, _)| first <= seq)
        };
        if is_in(&self.redriven) {
            LetterState::Redriven
        } else if is_in(&self.discarded) {
            LetterState::Discarded
        } else {
            LetterState::Open
        }
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
    pub state: LetterState,
}

/// An event of a dead-letter topic.
pub enum DlqEvent {
    Letter(Letter),
    /// An event that is not a dead letter, but was published to the topic by a client.
    Other {
        id: Uuid,
        state: LetterState,
    },
}

/// The events of a dead-letter topic, up to the newest at the start.
pub struct Letters {
    history: History,
    pub states: LetterStates,
}

impl Letters {
    pub async fn open(client: &Client, topic: &str) -> anyhow::Result<Self> {
        let states = LetterStates::of(client, topic).await?;
        let query = HistoryQuery { to_seq: Some(states.last_seq), ..HistoryQuery::default() };
        Ok(Self { history: client.history(&states.topic, query), states })
    }

    /// Reads the next event; `None` at the end.
    pub async fn next(&mut self) -> anyhow::Result<Option<DlqEvent>> {
        let Some(found) = self.history.next().await? else { return Ok(None) };
        let (id, state) = (found.event.id, self.states.state(found.event.seq));
        Ok(Some(match serde_json::from_str(found.event.payload.get()) {
            Ok(letter) => {
                DlqEvent::Letter(Letter { id, ts: found.event.ts, json: found.json, letter, state })
            }
            Err(_) => DlqEvent::Other { id, state },
        }))
    }
}

/// Whether the selection selects every event of the topic.
pub fn selects_all(selection: &LetterSelection) -> bool {
    let LetterSelection { group, filter, error_contains } = selection;
    group.is_none() && filter.filters.is_empty() && error_contains.is_none()
}

/// Whether a letter is selected.
pub fn is_selected(selection: &LetterSelection, letter: &DeadLetter) -> bool {
    selection.group.as_ref().is_none_or(|group| letter.group == *group)
        && selection.error_contains.as_ref().is_none_or(|text| letter.err.contains(text))
        && filter::matches(&selection.filter.filters, &letter.original)
}

/// Marks letters as redriven or discarded. Returns when that is on the server's disk. While the server cannot be reached, it tries
/// again for [`PATIENCE`]: a repeated request changes nothing.
pub async fn close(
    client: &Client,
    topic: &str,
    ids: &[Uuid],
    state: LetterState,
) -> Result<(), ClientError> {
    let path = Client::path(&["dead-letters", topic, "close"], &[]);
    let body = json!({ "ids": ids, "state": state.as_str() });
    let (started, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        match client.post_json::<serde_json::Value>(&path, &body).await {
            Err(error) if error.is_passing() && started.elapsed() + wait < PATIENCE => {
                if wait == FIRST_WAIT {
                    print_error(&format!("{}; retrying", one_line(&error.into())));
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            closed => return closed.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_letter_is_found_in_the_ranges() {
        let states = LetterStates {
            topic: "dlq.a".to_owned(),
            last_seq: 9,
            open: 4,
            redriven: vec![(1, 2), (5, 5)],
            discarded: vec![(7, 8)],
            next: None,
        };
        let found: String = (1..=9).map(|seq| states.state(seq).as_str().chars().next().unwrap()).collect();
        assert_eq!(found, "rrooroddo");
    }
}
