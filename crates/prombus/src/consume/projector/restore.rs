//! Restores the states of a projector from its output topic.

use super::ProjectorError;
use crate::batch::PullLimit;
use crate::bus::Bus;
use crate::error::ReadError;
use crate::event::Event;
use prombus_protocol::{Start, Topic, Uuid};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// The header of a state event that names the last input that its projector had folded: group, input topic, seq and id.
pub const POSITION_HEADER: &str = "projector-position";

/// The position of an input event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InputPosition {
    pub(super) seq: u64,
    pub(super) id: Uuid,
}

impl InputPosition {
    pub(super) fn header(self, group: &str, input: &Topic) -> String {
        // Topic and group names contain no space.
        format!("{group} {input} {} {}", self.seq, self.id)
    }

    fn from_header(header: &str, group: &str, input: &Topic) -> Option<Self> {
        let mut parts = header.split(' ');
        let is_ours = parts.next() == Some(group) && parts.next() == Some(input.as_str());
        if !is_ours {
            return None;
        }
        Some(Self { seq: parts.next()?.parse().ok()?, id: Uuid::try_parse(parts.next()?).ok()? })
    }
}

pub(super) struct RestoredStates<S> {
    pub(super) states: BTreeMap<String, S>,
    /// The last input that was folded; `None` if it is not known, so that every delivered input is folded.
    pub(super) position: Option<InputPosition>,
    /// The seq of the next state event.
    pub(super) next_seq: u64,
}

/// Reads the newest state of each key, and the last input that was folded.
pub(super) async fn restore<S: DeserializeOwned>(
    bus: &Bus,
    input: &Topic,
    output: &Topic,
    group: &str,
) -> Result<RestoredStates<S>, ProjectorError> {
    let mut restored = RestoredStates { states: BTreeMap::new(), position: None, next_seq: 1 };
    let mut not_states = 0_u64;
    loop {
        let page = match bus.read_from(output, restored.next_seq, PullLimit::default()).await {
            Ok(page) => page,
            Err(ReadError::UnknownTopic(_)) => break,
            Err(error) => return Err(error.into()),
        };
        // An event that is addressed to a group of the output topic is a copy for that group, not a state.
        for event in page.events.iter().filter(|event| !event.is_addressed()) {
            let header = event.header(POSITION_HEADER);
            let position = header.and_then(|header| InputPosition::from_header(&header, group, input));
            restored.position = position.or(restored.position);
            if !apply_state(&mut restored.states, event) {
                not_states += 1;
            }
        }
        if page.next_seq <= restored.next_seq {
            break;
        }
        restored.next_seq = page.next_seq;
    }
    if not_states > 0 {
        tracing::warn!("projector {group}: {not_states} events of {output} are not states; skipped");
    }
    if let Some(position) = restored.position
        && !is_of(bus, input, position).await?
    {
        tracing::warn!(
            "projector {group}: {input} is not the topic that {output} was built from; folding it from its start"
        );
        restored.position = None;
    }
    Ok(restored)
}

/// Applies a state event. Returns false if the event is not a state.
fn apply_state<S: DeserializeOwned>(states: &mut BTreeMap<String, S>, event: &Event) -> bool {
    let Some(key) = event.key() else { return false };
    match event.json::<Option<S>>() {
        Ok(Some(state)) => {
            states.insert(key.to_owned(), state);
            true
        }
        Ok(None) => {
            states.remove(key);
            true
        }
        Err(_) => false,
    }
}

/// Whether the input topic has this event at this position. A topic that was deleted and created again does not.
async fn is_of(bus: &Bus, input: &Topic, position: InputPosition) -> Result<bool, ProjectorError> {
    let end = match bus.backend().locate(input, Start::Latest).await {
        Ok(next) => next,
        Err(ReadError::UnknownTopic(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if end <= position.seq {
        return Ok(false);
    }
    let limit = PullLimit { events: 1, ..PullLimit::default() };
    let page = bus.read_from(input, position.seq, limit).await?;
    // If cleaning removed the event, assume that it was the same event.
    let found = page.events.first().filter(|event| event.seq() == position.seq);
    Ok(found.is_none_or(|event| event.id() == position.id))
}
